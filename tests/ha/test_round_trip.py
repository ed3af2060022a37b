"""Messages go from a folder into an engine, and back into a folder: each is received once, with its count and body."""

import asyncio
from pathlib import Path

from cmqd.exit_codes import ExitCode
from cmqd.ha.exporting import export_folder
from cmqd.ha.importing import import_folder
from cmqd.log.interface import Log
from cmqd.log.values import Redundancy
from cmqd.server.process.broker_reload import Reload
from cmqd.server.process.daemon import Daemon
from cmqd.settings import Settings
from support.engine.journey import Journey, with_port
from support.engine.replicas import LogToTheEnd, Replicas
from support.eventually import eventually
from support.processes.running_broker import RunningBroker


class BrokerOverEngine(Daemon):
    """A broker with its storage service on the loop of the test."""

    def __init__(self, replicas: Replicas, folder: Path) -> None:
        settings = Settings(
            data=folder,
            listen="127.0.0.1:0",
            ready_file=folder.with_suffix(".json"),
            redundancy=Redundancy.POSTGRESQL,
            engine_url="postgresql://in-memory",
        )
        super().__init__(settings, Reload(settings, lambda: settings))
        self._storage = LogToTheEnd(replicas, folder)

    def _make_log(self) -> Log:
        return self._storage

    async def end(self) -> None:
        self._stop.set()


async def test_every_message_is_received_once_on_the_way_into_an_engine_and_back(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    journey = Journey()
    with RunningBroker(tmp_path) as broker:
        url = broker.url
        await journey.begin(url)
    folder, ready_file = tmp_path / "data", tmp_path / "data.json"

    await asyncio.to_thread(import_folder, folder, replicas.engine(), 0, print)
    leader = BrokerOverEngine(replicas, folder)
    serving = asyncio.create_task(leader.run())
    await eventually(lambda: ready_file.exists() or serving.done())
    await journey.go_on(with_port(url, ready_file), 100)
    await leader.end()
    assert await serving is ExitCode.OK
    engine = replicas.engine()
    await asyncio.to_thread(export_folder, folder, engine, 0, lambda: LogToTheEnd(replicas, folder), print)
    engine.close()

    broker.start()
    assert broker.url == url
    await journey.go_on(url, 200)
    await journey.end(url)
    assert broker.stop() == ExitCode.OK
