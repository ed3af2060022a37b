"""``cmqd.testing.BrokerProcess`` with more patience, for the tests of this project on machines with much to do."""

from pathlib import Path

from cmqd.testing import BrokerProcess
from support.processes.environment import broker_environment


class RunningBroker(BrokerProcess):
    """A real broker; its patience with its disk and its clients outlasts a slow machine."""

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder, *flags, environment=broker_environment())
