"""A real broker in processes of its own, on a port and a folder of its own."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Self

from support.environment import broker_environment


class RunningBroker:
    """``cmqd serve`` as a context manager; ``kill`` and ``start`` make a crash of it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.flags = flags
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._storage_pid = 0

    @property
    def context_file(self) -> Path:
        return self.folder / "data" / "admin.context.toml"

    @property
    def url(self) -> str:
        contexts = tomllib.loads(self.context_file.read_text())
        address, _, _ = contexts["contexts"]["admin"]["url"].rpartition(":")
        # The port of the first start stays; a later one writes no new context file.
        return f"{address}:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process is None:
            return
        if kind is None:
            self.stop()
        else:
            self.kill()  # the time limit of the suite ends one wait, not a second one

    def start(self) -> None:
        """Start it, again on the same port, and wait until it listens."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "cmqd", "serve", "--data", str(self.folder / "data")]
        command += ["--listen", f"127.0.0.1:{self.port}", "--ready-file", str(ready)]
        command += self.flags
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=broker_environment())
        try:
            while not (ready.exists() and (text := ready.read_text())):
                if self._process.poll() is not None:
                    raise AssertionError(f"the broker did not start:\n{(self.folder / 'log').read_text()}")
                time.sleep(0.02)
        except BaseException:  # also the time limit of the suite: outside ``with`` no other code ends the process
            self._process.kill()
            raise
        facts = json.loads(text)
        self.port, self._storage_pid = facts["port"], facts["storage_pid"]

    def kill(self) -> None:
        """End both its processes with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        try:
            os.kill(self._storage_pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has noticed already
        self._process.wait()
        self._process = None

    def stop(self) -> int:
        """Ask it to drain and end; its exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        process.terminate()
        try:
            return process.wait()
        finally:
            process.kill()
