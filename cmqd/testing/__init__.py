"""Tests without a server: a broker in the process of the test, with a clock that the test turns, and the real process.

    with LocalBroker() as broker:
        with cmqd_client.sync.connect(broker.url) as client: ...
        broker.clock.advance(hours=3)         leases end, delays pass, retries are due; all of it in milliseconds

    with LocalBroker(clone="incident") as broker: ...    begins with the messages of a data folder or backup

    with BrokerProcess(folder) as broker: ...  ``cmqd serve`` on a free port, which a test can kill and start again

Both need the extra ``cmqd[server]``. The fixtures ``cmqd_broker``, ``cmqd_client``, ``cmqd_sync_client`` and
``cmqd_process`` of ``cmqd.pytest_plugin`` are there wherever cmqd is installed beside pytest.
"""

from cmqd_types.sentences import missing_extra

try:
    from cmqd.testing.broker_process import BrokerNotReadyError, BrokerProcess
    from cmqd.testing.clock import Clock
    from cmqd.testing.clones import Clone, CloneError, CloneTimeoutError
    from cmqd.testing.local_broker import BrokerFailedError, LocalBroker
except ModuleNotFoundError as _missing:
    raise missing_extra("cmqd.testing", "server", _missing) from None

__all__ = [
    "BrokerFailedError",
    "BrokerNotReadyError",
    "BrokerProcess",
    "Clock",
    "Clone",
    "CloneError",
    "CloneTimeoutError",
    "LocalBroker",
]
