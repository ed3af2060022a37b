"""A broker that stands by, and leads once the leader has ended."""

import contextlib
from threading import Thread

from cmqd.testing.broker_process import BrokerNotReadyError
from support.processes.running_broker import RunningBroker


def standing_by(broker: RunningBroker) -> Thread:
    """Start a broker that leads once the other has ended; the thread ends then."""

    def start() -> None:
        with contextlib.suppress(BrokerNotReadyError):  # the end of the test kills it as a standby
            broker.start()

    thread = Thread(target=start, daemon=True)
    thread.start()
    return thread
