"""Checkouts to compare: the working tree, and a temporary worktree of another commit."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from cmqd_bench.failures import BenchFailed

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (".", "bench", "client", "protocol")
"""Folders of a checkout that hold packages, as in ``dev-mode-dirs`` of pyproject.toml."""
GIT_SECONDS = 60


class RevisionUnknown(BenchFailed):
    """The revision cannot be checked out; the text is git's."""


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=GIT_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        raise RevisionUnknown(error.stderr.strip() or f"git {arguments[0]} failed") from error
    return done.stdout.strip()


@contextmanager
def checked_out(revision: str) -> Generator[tuple[Path, str]]:
    """Yield the folder of a temporary worktree of ``revision``, and the short commit; both are removed at the end.

    Raises:
        RevisionUnknown: git knows no commit of this name.
    """
    commit = _git("rev-parse", "--verify", "--short=10", f"{revision}^{{commit}}")
    folder = Path(tempfile.mkdtemp(prefix="cmqd-compare-"))
    try:
        # Without the working tree's hooks and submodules: only the files of the commit.
        _git("worktree", "add", "--quiet", "--force", "--detach", str(folder / "base"), commit)
        yield folder / "base", commit
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _git("worktree", "prune")


class WrongProduct(BenchFailed):
    """A tree's environment imports another installation."""


def check_product(tree: Path) -> None:
    """Check that processes with the environment of a tree import the product of the tree.

    Raises:
        WrongProduct: they import another product, or none.
    """
    command = [sys.executable, "-P", "-c", "import cmqd; print(cmqd.__file__)"]
    done = subprocess.run(command, env=environment(tree, 1), capture_output=True, text=True, check=False)
    if not done.stdout or not Path(done.stdout.strip()).resolve().is_relative_to(tree.resolve()):
        raise WrongProduct(f"{tree} was to be measured, but a process imported {done.stdout or done.stderr}")


def environment(tree: Path, hash_seed: int) -> dict[str, str]:
    """Return the environment of a process that imports the packages of ``tree``.

    The folders of ``PYTHONPATH`` come before those of the installation, so interpreter and libraries are the same for
    both trees and the product differs. Both processes of a turn have the same hash seed, because the seed decides the
    collisions in dictionaries.
    """
    path = os.pathsep.join(str((tree / source).resolve()) for source in SOURCES)
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(hash_seed), "PYTHONDONTWRITEBYTECODE": "1"}
