"""Invariants of the parts of a server, as assertions."""

# pyright: reportPrivateUsage=false

from cmqd.server.access.accounts import Accounts
from cmqd.server.clients.transaction_checkers import TransactionCheckers
from cmqd.server.push.outbox import Outbox


def check_outbox(outbox: Outbox) -> None:
    lsns = [lsn for lsn, _ in outbox.held]
    assert lsns == sorted(lsns), lsns
    assert not lsns or lsns[0] > outbox._durable_lsn(), (lsns[0], outbox._durable_lsn())
    assert all(outbox._unsigned.values())


def check_checkers(checkers: TransactionCheckers) -> None:
    for (account, name), queue in checkers._queues.items():
        assert queue.turns, (account, name)
        assert set(queue.turns) == set(queue.asked)
        assert len(queue.turns) == len(queue.asked)
        for checker in queue.turns:
            assert checker.account == account
            assert checker.checked_queues is not None
            assert name in checker.checked_queues
        asked = {message_id: checker for checker, ids in queue.asked.items() for message_id in ids}
        assert asked == queue.asked_by_message
        assert sum(map(len, queue.asked.values())) == len(asked)


def check_accounts(accounts: Accounts) -> None:
    assert not accounts._document.faults()
    assert len(accounts._keys) == len(accounts._document.keys)
