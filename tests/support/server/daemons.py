"""Brokers as ``cmqd serve`` runs them, in the process of the test and over a given log or an engine in memory."""

import asyncio
import json
from pathlib import Path
from typing import Any

from cmqd.exit_codes import ExitCode
from cmqd.log.interface import Log
from cmqd.log.values import Redundancy
from cmqd.server.process.broker_reload import Reload
from cmqd.server.process.daemon import Daemon
from cmqd.server.server import Server
from cmqd.settings import Settings
from support.engine.replicas import Replicas
from support.eventually import eventually


def url_of(context_file: Path) -> str:
    text = context_file.read_text()
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("url"))


class DaemonOverLog(Daemon):
    """A server over a given log."""

    def __init__(self, folder: Path, log: Log) -> None:
        settings = Settings(data=folder / "data", listen="127.0.0.1:0", ready_file=folder / "ready.json")
        super().__init__(settings, Reload(settings, lambda: settings))
        self._given_log = log

    def _make_log(self) -> Log:
        return self._given_log


class DaemonOverEngine(Daemon):
    """A broker with its storage service on the loop of the test."""

    def __init__(self, replicas: Replicas, folder: Path, storage: dict[str, int] | None = None, **named: Any) -> None:
        settings = Settings(
            data=folder,
            listen="127.0.0.1:0",
            ready_file=folder.with_suffix(".json"),
            redundancy=Redundancy.POSTGRESQL,
            engine_url="postgresql://in-memory",
            **named,
        )
        super().__init__(settings, Reload(settings, lambda: settings))
        self.ready_file = folder.with_suffix(".json")
        self.replica = replicas.broker(folder.name, **(storage or {}))
        self.ended: asyncio.Task[ExitCode] | None = None

    def _make_log(self) -> Log:
        return self.replica.log

    def begin(self) -> None:
        self.ended = asyncio.create_task(self.run())

    async def led(self) -> None:
        """Wait until the broker serves."""
        ended = self.ended
        assert ended is not None
        await eventually(lambda: self.ready_file.exists() or ended.done())
        assert not ended.done(), ended

    @property
    def server(self) -> Server:
        """The server of a broker that leads."""
        assert self._server is not None
        return self._server

    @property
    def url(self) -> str:
        """The URL of the administrator."""
        return url_of(self._settings.data / "admin.context.toml")

    @property
    def address(self) -> str:
        """The address of this broker, which leads."""
        ready = json.loads(self.ready_file.read_text())
        return f"{ready['host']}:{ready['port']}"

    @property
    def port(self) -> int:
        """The port at which a standby listens, 0 before."""
        return 0 if self.standby is None else self.standby.address[1]

    async def end(self) -> ExitCode:
        self._stop.set()
        assert self.ended is not None
        return await self.ended
