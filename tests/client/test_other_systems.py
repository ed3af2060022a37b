"""The client and the command line run on macOS and Windows: nothing that only POSIX or Linux has is imported or needed.

The tests run on Linux with the differences made by hand: modules that are missing elsewhere cannot be imported by the
code of the project, and functions and constants that are missing elsewhere are taken out of the standard library.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.environment import plain_environment

ELSEWHERE = """
import asyncio, builtins, os, select, signal, socket, sys
import importlib, json, pkgutil, ssl, sqlite3, subprocess, tempfile

MISSING_MODULES = {
    "crypt", "curses", "fcntl", "grp", "nis", "ossaudiodev", "posix", "pty", "pwd", "readline", "resource", "spwd",
    "syslog", "termios", "tty", "uvloop",
}
MISSING_NAMES = {
    os: [
        "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "chown", "fchmod", "fchown", "fork", "getegid",
        "geteuid", "getgid", "getpgid", "getuid", "killpg", "mkfifo", "posix_fallocate", "preadv", "sched_getaffinity",
        "setsid", "statvfs", "sysconf", "umask", "uname",
    ],
    select: ["epoll", "poll"],
    signal: ["SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "setitimer", "sigwait"],
    socket: ["AF_UNIX", "MSG_DONTWAIT", "SO_REUSEPORT", "TCP_USER_TIMEOUT"],
}
OURS = {
    "cmq_cli", "cmqd_client", "cmqd_fold", "cmqd_log", "cmqd_protocol", "cmqd_reading", "cmqd_segment",
    "cmqd_types", "pyspark_cmqd",
}
real_import = builtins.__import__


def import_elsewhere(name, globals=None, locals=None, fromlist=(), level=0):
    importer = ((globals or {}).get("__name__") or "").partition(".")[0]
    if importer in OURS and name.partition(".")[0] in MISSING_MODULES:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return real_import(name, globals, locals, fromlist, level)


def add_signal_handler(self, *arguments):
    raise NotImplementedError


builtins.__import__ = import_elsewhere
asyncio.SelectorEventLoop.add_signal_handler = add_signal_handler


def take_names_out():
    for module, names in MISSING_NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
"""


def run_elsewhere(
    script: str, *arguments: str, platform: str = "win32", environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    # The platform is set after the imports of the standard library, which is that of Linux.
    text = f"{ELSEWHERE}\nimport msgspec, cyclopts, rich.progress, rich.table\nsys.platform = {platform!r}\n{script}"
    return subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        text=True,
        env={**plain_environment(), **(environment or {})},
        check=False,
    )


IMPORT_ALL = """
take_names_out()
count = 0
for top in ("cmqd_client", "cmqd_protocol", "cmqd_segment", "cmqd_types", "cmq_cli"):
    package = importlib.import_module(top)
    for module in pkgutil.walk_packages(package.__path__, f"{top}."):
        importlib.import_module(module.name)
        count += 1
print(count)
"""


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_every_module_of_client_and_command_line_is_imported_without_posix(platform: str) -> None:
    ran = run_elsewhere(IMPORT_ALL, platform=platform)

    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 50


def test_the_block_of_posix_modules_blocks() -> None:
    """The test above could not fail otherwise."""
    ran = run_elsewhere("from cmqd_log.copy import journal")

    assert ran.returncode == 1
    assert "No module named 'fcntl'" in ran.stderr


def test_a_command_that_reads_a_data_folder_says_that_windows_has_none(tmp_path: Path) -> None:
    script = "from cmq_cli.__main__ import main\nsys.exit(main(sys.argv[1:]))"

    ran = run_elsewhere(script, "reconcile", "--path", str(tmp_path))

    assert ran.returncode == 2
    assert "commands that read a data folder run on Linux and macOS, not on Windows" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_server_says_where_it_runs(tmp_path: Path) -> None:
    for platform, name in (("darwin", "macOS"), ("win32", "Windows")):
        script = "from cmqd.__main__ import main\nsys.exit(main(sys.argv[1:]))"
        ran = run_elsewhere(script, "serve", "--data", str(tmp_path / "data"), platform=platform)

        assert ran.returncode == 2
        assert f"the server runs on Linux, not on {name}." in ran.stderr
        assert "Traceback" not in ran.stderr
    assert os.listdir(tmp_path) == []
