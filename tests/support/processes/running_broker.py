"""``cmqd.testing.BrokerProcess`` with more patience, for the tests of this project on machines with much to do."""

from collections.abc import Mapping
from pathlib import Path
from typing import IO

from cmqd.testing import BrokerProcess
from cmqd.testing.broker_process import Process
from support.processes.environment import broker_environment
from support.processes.forked_program import ForkedProgram


class RunningBroker(BrokerProcess):
    """A real broker, forked; its patience with its disk and its clients outlasts a slow machine."""

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder, *flags, environment=broker_environment())

    def _launch(self, arguments: list[str], log: IO[bytes], environment: Mapping[str, str]) -> Process:
        return ForkedProgram("cmqd", arguments, output=log, environment=environment)
