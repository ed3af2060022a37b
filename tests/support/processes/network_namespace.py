"""A machine of its own for a process: a network namespace, with a cable to ours that can be pulled.

Both ends of the cable are in network namespaces that no other program has: a test runs itself again by ``unshare -n``.
"""

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from support.eventually import eventually_elsewhere

OUR_ADDRESS, ITS_ADDRESS = "10.9.0.1", "10.9.0.2"
_PROGRAMS = ("unshare", "nsenter", "ip")


def lacks_namespaces() -> str | None:
    """Return what this machine lacks for network namespaces, None if it lacks nothing."""
    if os.geteuid() != 0:
        return "root, who may make network namespaces"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} (of util-linux and iproute2)"
    made = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True)
    return None if made.returncode == 0 else "the right to make network namespaces"


class OtherMachine:
    """A network namespace with ``ITS_ADDRESS``; ours has ``OUR_ADDRESS``. Use as a context, in ``unshare -n``."""

    def __enter__(self) -> Self:
        self._owner = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        eventually_elsewhere(lambda: os.readlink(f"/proc/{self._owner.pid}/ns/net") != own)
        self.enter = ["nsenter", "-t", str(self._owner.pid), "-n"]
        """Begin of a command that runs in the namespace."""
        _ip("link", "add", "ours", "type", "veth", "peer", "name", "its")
        _ip("link", "set", "its", "netns", str(self._owner.pid))
        for prefix, device, address in (((), "ours", OUR_ADDRESS), (self.enter, "its", ITS_ADDRESS)):
            _ip("address", "add", f"{address}/24", "dev", device, prefix=prefix)
            for name in ("lo", device):
                _ip("link", "set", name, "up", prefix=prefix)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The namespaces and the cable end with their last process.
        self._owner.kill()
        self._owner.wait()

    def pull_cable(self) -> None:
        """Let nothing pass; the machine answers no keepalive either."""
        _ip("link", "set", "ours", "down")

    def plug_cable(self) -> None:
        """Undo ``pull_cable``."""
        _ip("link", "set", "ours", "up")

    def write_interpreter(self, python: str, file: Path) -> str:
        """Make a program that runs a Python interpreter in the namespace, and return its path."""
        file.write_text(f'#!/bin/sh\nexec {" ".join(self.enter)} {python} "$@"\n')
        file.chmod(0o755)
        return str(file)


def _ip(*arguments: str, prefix: "list[str] | tuple[()]" = ()) -> None:
    subprocess.run([*prefix, "ip", *arguments], check=True)
