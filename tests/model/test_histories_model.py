"""Histories and searches that are read from a data folder equal the calls of the model, over kills of the storage.

The rows of an example are written by a real storage process, which SIGKILL ends in the middle of a commit. Broker and
``cmq history --path`` then read the history of every message of the example, from sealed segments with their side
files and from rows that are not sealed yet. Both search for the headers and dedup ids of the example too.
"""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis.stateful import run_state_machine_as_test
from model.judge import MARKS, Judge, profile
from model.lives import check_life, messages_by_id, path_to
from model.test_everything_model import EverythingMachine
from model.topics import TopicsMachine
from msgspec.structs import replace

from cmqd_log.data_folder.histories import HistoryReader, NoMessageError
from cmqd_reading.message_search import MessageQuery
from cmqd_segment.records import AnyRecord, MessagesPublished, MessagesSent
from cmqd_types.histories import LifeKind
from support.core.naive_broker import NaiveMessage
from support.spark.log_folder import Row, rows_of
from support.storage.log_rig import ForkedPlace, LogRig

pytestmark = pytest.mark.system

EXAMPLES = 400
"""Of each machine; in full some 10,000 messages together."""
MANY_LIVES = 1000
"""Messages among which every kind of event is sure to be."""
PARTS = 4
"""Segments of an example; the last part stays unsealed."""
KINDS = {
    "EverythingStored": {LifeKind.EXPIRED, LifeKind.CLEARED, LifeKind.REWOUND, LifeKind.QUEUE_DELETED},
    "TopicsStored": {LifeKind.EXPIRED, LifeKind.CLEARED, LifeKind.COPIED, LifeKind.QUEUE_DELETED},
}
"""Events of many messages at once, and of copies: by machine."""


class StoredLives(Judge):
    """Reads all lives from a folder at the end of an example."""

    kinds: ClassVar[Counter[str]] = Counter()
    """Events that were compared."""
    lives: ClassVar[int] = 0
    """Messages with a compared history."""
    found: ClassVar[int] = 0
    """Messages that searches found."""

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "queues"):
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(self._check_stored_lives(Path(folder) / "data"))

    async def _check_stored_lives(self, folder: Path) -> None:
        rig = await write_with_kills(folder, rows_of(self))
        by_id = messages_by_id(self)
        reader = HistoryReader(str(folder))
        for message_id in sorted(by_id):
            path = path_to(self.log.rows, message_id)
            answer = await rig.log.read_history(message_id)
            assert answer.history is not None
            for history in (answer.history, reader.history(message_id)):
                check_life(self, by_id, path, history)
            StoredLives.kinds.update(event.kind for event in answer.history.events)
            StoredLives.lives += 1
        await self._check_searches(rig, reader, by_id)
        await rig.log.close()

    async def _check_searches(
        self, rig: LogRig, reader: HistoryReader, by_id: Mapping[int, Sequence[NaiveMessage]]
    ) -> None:
        for header in {pair for marks in MARKS for pair in (marks or {}).items()}:
            sent = {
                message_id
                for message_id, messages in by_id.items()
                for message in messages
                if message.calls[0] in ("sent", "half") and (message.headers or {}).get(header[0]) == header[1]
            }
            found = await found_by(rig, MessageQuery(header=header))
            assert found == found_in(reader, header=header)
            # Messages of topics are in no queue; their copies have other ids.
            assert {message_id for message_id in found if message_id in by_id} == sent
            for queue in (self.queues + self.gone_queues)[:4]:
                query = MessageQuery(header=header, account=queue.account, source=queue.name)
                assert await found_by(rig, query) == found_in(
                    reader, header=header, queue=queue.name, account=queue.account
                )
            StoredLives.found += len(found)
        for dedup_id in {dedup_id for each in all_dedup_ids(self.log.rows) for dedup_id in each} - {None}:
            found = await found_by(rig, MessageQuery(dedup_id=dedup_id))
            assert found
            assert found == found_in(reader, dedup_id=dedup_id)
            StoredLives.found += len(found)


async def found_by(rig: LogRig, query: MessageQuery) -> list[int]:
    """The ids of all slices of a search, of the queues of the query."""
    found: list[int] = []
    while True:
        answer = await rig.log.find_messages(query)
        owners = {owner.id: owner for owner in answer.owners}
        for message in answer.found.messages:
            owner = owners[message.source_id]
            if query.may_be_of(owner.account, owner.name):
                found.append(message.message_id)
        if not answer.found.next_lsn:
            return found
        query = replace(query, start_lsn=answer.found.next_lsn, start_index=answer.found.next_index)


def found_in(reader: HistoryReader, **search: Any) -> list[int]:
    """The ids that the search of the files finds."""
    try:
        return reader.search(**search, limit=1 << 30)
    except NoMessageError:
        return []


def all_dedup_ids(rows: Sequence[Sequence[AnyRecord]]) -> Iterator[Sequence[str | None]]:
    for records in rows:
        for record in records:
            if isinstance(record, MessagesSent | MessagesPublished):
                yield record.dedup_ids or ()


async def write_with_kills(folder: Path, rows: list[Row]) -> LogRig:
    """Write rows with a kill of the storage in each part, and return the open log with all of them."""
    place, chance = ForkedPlace(folder), random.Random(len(rows))
    rig = LogRig(place.log())
    await rig.open()
    size = len(rows) // PARTS + 1
    killed_at = {chance.randrange(first, first + size) for first in range(0, len(rows), size)}
    while rig.log.last_lsn < len(rows):
        number = rig.log.last_lsn
        records, bodies, time_ms = rows[number]
        rig.log.append(records, bodies, time_ms)
        if number in killed_at:
            # The row may be durable or lost; the next life goes on behind the last durable row.
            killed_at.remove(number)
            rig.log.flush()
            await place.crash(rig.log)
            rig = LogRig(place.log())
            await rig.open()
            assert rig.log.last_lsn in (number, number + 1)
            continue
        await rig.commit()
        if (number + 1) % size == 0:
            await rig.log.seal_now()
    return rig


class EverythingStored(StoredLives, EverythingMachine):
    pass


class TopicsStored(StoredLives, TopicsMachine):
    pass


@pytest.mark.parametrize("machine", [EverythingStored, TopicsStored])
def test_histories_of_stored_messages_are_the_calls_of_the_model(machine: type[Judge]) -> None:
    StoredLives.kinds.clear()
    StoredLives.lives = StoredLives.found = 0

    run_state_machine_as_test(machine, settings=profile(EXAMPLES))

    print(f"{machine.__name__}: histories of {StoredLives.lives} messages, {dict(StoredLives.kinds)}")
    assert StoredLives.lives
    assert StoredLives.found
    if StoredLives.lives >= MANY_LIVES:
        assert StoredLives.kinds.keys() >= KINDS[machine.__name__]
