"""Histories that are read from a data folder equal the calls of the model, over kills of the storage.

The rows of an example are written by a real storage process, which SIGKILL ends in the middle of a commit. Broker and
``cmq history --path`` then read the history of every message of the example, from sealed segments with their side
files and from rows that are not sealed yet.
"""

import asyncio
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis.stateful import run_state_machine_as_test
from model.judge import Judge, profile
from model.lives import check_life, messages_by_id, path_to
from model.test_everything_model import EverythingMachine
from model.topics import TopicsMachine

from cmqd_log.data_folder.histories import HistoryReader
from cmqd_types.histories import LifeKind
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
        await rig.log.close()


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
    StoredLives.lives = 0

    run_state_machine_as_test(machine, settings=profile(EXAMPLES))

    print(f"{machine.__name__}: histories of {StoredLives.lives} messages, {dict(StoredLives.kinds)}")
    assert StoredLives.lives
    if StoredLives.lives >= MANY_LIVES:
        assert StoredLives.kinds.keys() >= KINDS[machine.__name__]
