"""Ways for messages to leave a queue, by rows in segments that go while the segment of the messages stays."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from support.core.builders import START_MS, Rig
from support.storage.outcome_rig import OutcomeRig

MINUTE_MS = 60_000
Step = Callable[[Rig], object]


def sent(core: Rig) -> None:
    core.send(*[b"x"] * 100)


class Way(NamedTuple):
    """A way to leave: attributes of the queue, steps with a segment each, and (state, receives) of 100 messages."""

    attributes: dict[str, int | str | bool]
    steps: list[Step]
    told: dict[tuple[str, int | None], int]
    fill: Step = sent


def received(core: Rig) -> None:
    """Receive every message; the visibility timeouts pass."""
    while core.receive(most=16):
        pass
    core.settle(MINUTE_MS)


def expired(core: Rig) -> None:
    core.settle(4 * MINUTE_MS)


def cleared(core: Rig) -> None:
    core.clear()


def queue_deleted(core: Rig) -> None:
    core.delete_queue()


def half_sent(core: Rig) -> None:
    core.send_half(*[b"h"] * 100)


def deleted(core: Rig, count: int = 100) -> None:
    """Delete the first messages of the queue."""
    while count:
        handles = core.handles(most=min(count, 16))
        assert handles
        assert core.delete(*handles) == []
        count -= len(handles)


def all_but_first(core: Rig) -> None:
    """Delete all messages but the first, which comes back."""
    core.delete(*core.handles(most=16)[1:])
    deleted(core, 84)
    core.settle(MINUTE_MS)


def rejected(core: Rig) -> None:
    while handles := core.handles(most=16):
        assert core.reject(*handles) == {}


def rewound(core: Rig) -> None:
    assert core.rewind(START_MS).messages == 100


def in_one_row(*steps: Step) -> Step:
    """The rows of the steps as a single row, as of requests that came together."""

    def together(core: Rig) -> None:
        before = core.log.last_lsn
        for step in steps:
            step(core)
        rows = core.log.rows[before:]
        core.log.rows[before:] = [[record for row in rows for record in row]]

    return together


def decided(core: Rig) -> None:
    """Commit the first 50 half messages, and roll the others back."""
    queue_id = core.queue().queue_id
    ids = [core.log.stored[queue_id, position].message_id for position in range(100)]
    assert core.end(1, *ids[:16]) == core.end(1, *ids[16:32]) == core.end(1, *ids[32:50]) == []
    assert core.end(2, *ids[50:75]) == core.end(2, *ids[75:]) == []


def moved_here(core: Rig) -> None:
    """Fill the queue with dead letters of another one."""
    core.create("source", dead_letter_queue="q", dead_letter_max_receives=1000)
    core.send(*[b"x"] * 100, name="source")
    while handles := core.handles("source", most=16):
        assert core.reject(*handles, name="source") == {}


def redriven(core: Rig) -> None:
    core.redrive("q")
    core.settle(MINUTE_MS)


REWINDING: dict[str, int | str | bool] = {"rewind_ms": 3_600_000, "visibility_timeout_ms": 30_000}
PLAIN: dict[str, int | str | bool] = {"visibility_timeout_ms": 30_000}
DEAD_LETTERS: dict[str, int | str | bool] = {**PLAIN, "dead_letter_queue": "dead", "dead_letter_max_receives": 1000}
WAYS = {
    "deleted but one": Way(PLAIN, [all_but_first], {("active", 1): 1, ("deleted", 1): 99}),
    "received ten times, deleted in another segment": Way(
        PLAIN,
        [*[received] * 9, deleted],
        {("deleted", 10): 100},
    ),
    "dead letters by receives": Way(
        {**PLAIN, "dead_letter_queue": "dead", "dead_letter_max_receives": 2},
        [received, received],
        {("dead_lettered", 2): 100},
    ),
    "rejected": Way(DEAD_LETTERS, [rejected], {("dead_lettered", 1): 100}),
    "expired": Way(
        {**PLAIN, "retention_ms": 120_000},
        [received, expired],
        {("expired", 1): 100},
    ),
    "cleared": Way(PLAIN, [received, cleared], {("cleared", 1): 100}),
    "queue deleted": Way(PLAIN, [received, queue_deleted], {}),
    "half messages, decided": Way(
        {**PLAIN, "transactional": True},
        [decided],
        {("committed", 0): 50, ("rolled_back", 0): 50},
        half_sent,
    ),
    "redriven": Way(PLAIN, [redriven], {("redriven", 0): 100}, moved_here),
    "deleted in a rewind window": Way(REWINDING, [deleted], {("deleted", 1): 100}),
    "rewound": Way(REWINDING, [deleted, rewound], {("active", 0): 100}),
    "rewound and deleted again": Way(REWINDING, [received, deleted, rewound, deleted], {("deleted", 1): 100}),
}


async def lives(folder: Path, way: Way, *, at_each_step: bool) -> OutcomeRig:
    """The first segment has the messages, and one more that keeps it; each step is a segment that goes.

    ``at_each_step``: a checkpoint is taken behind each segment, else behind the last.
    """
    core = Rig()
    core.create("dead")
    core.create("q", **way.attributes)
    core.create("stuck")
    way.fill(core)
    core.send(b"stuck", name="stuck")
    rig = OutcomeRig(folder, core)
    await rig.start()
    await rig.segment()
    await rig.checkpoint()
    for step in way.steps:
        step(core)
        await rig.segment()
        if at_each_step:
            await rig.checkpoint()
    return rig
