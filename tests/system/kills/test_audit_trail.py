"""The audit trail after kill -9: every operation that was answered has its entry, and every entry its change.

Segments are as small as possible, so that checkpoints are taken and segments are sealed and dropped meanwhile.
"""

from pathlib import Path

import pytest

from cmqd_protocol import messages as wire
from cmqd_types.audit import AuditEntry
from support.client.raw_client import RawClient
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

KILLS = 8
ASKED = 120
"""Requests of a round, pipelined."""
ANSWERED = 60
"""Replies that are read before the kill."""
BODY = b"x" * 60_000
FLAGS = ("--segment-bytes", str(1 << 20))


def trail(client: RawClient) -> list[AuditEntry]:
    """All entries, oldest first."""
    entries: list[AuditEntry] = []
    before = 0
    while True:
        page = client.ask(wire.AuditEntries, wire.ListAuditEntries, None, before, 0, 0, None, "", "", 1000)
        entries += page.entries
        before = page.next_before
        if not before:
            return entries[::-1]


def names(client: RawClient) -> set[str]:
    return {name for _, name in client.ask(wire.QueueList, wire.ListQueues, "", 0, 1000).queues}


def test_changes_and_entries_survive_together(tmp_path: Path) -> None:
    answered: list[tuple[str, str]] = []
    with RunningBroker(tmp_path, *FLAGS) as broker:
        for number in range(KILLS):
            with RawClient(broker.url) as client:
                asked: list[tuple[int, str, str]] = []
                for place in range(ASKED // 2):
                    name = f"q{number}-{place}"
                    asked.append((client.begin(wire.CreateQueue, name, {}), "create_queue", name))
                    # Bodies fill segments, so that checkpoints are taken while entries come in.
                    client.begin(wire.SendMessages, name, [BODY])
                    asked.append((client.begin(wire.DeleteQueue, name), "delete_queue", name))
                for request_id, operation, name in asked[:ANSWERED]:
                    assert not isinstance(client.reply(request_id), wire.Error)
                    answered.append((operation, name))
                broker.kill()
            broker.start()
            with RawClient(broker.url) as client:
                entries = trail(client)
                made = [(entry.operation, entry.name) for entry in entries]
                assert [entry.entry_id for entry in entries] == list(range(1, len(entries) + 1))
                # The kill may have let more operations through than were answered, never fewer.
                assert [each for each in made if each in set(answered)] == answered
                assert len(made) == len(set(made))
                created = {name for operation, name in made if operation == "create_queue"}
                deleted = {name for operation, name in made if operation == "delete_queue"}
                assert names(client) == created - deleted, "no change without its entry, no entry without its change"
                answered = made
        assert len(answered) >= KILLS * ANSWERED


def test_a_key_that_was_made_before_the_kill_has_its_entry(tmp_path: Path) -> None:
    with RunningBroker(tmp_path, *FLAGS) as broker:
        with RawClient(broker.url) as client:
            made = client.ask(wire.KeyList, wire.CreateRoleKey, ["send"], ["orders-*"])
            broker.kill()
        broker.start()
        with RawClient(broker.url) as client:
            (entry,) = trail(client)
    assert (entry.operation, entry.name) == ("create_role_key", made.keys[0].secret_id)
    assert entry.changes == "roles=send names=orders-*"
    assert entry.peer.startswith("127.0.0.1:")
