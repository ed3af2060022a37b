"""The cost of operations: between two looks at a timer, no request executes more than a bounded number of lines.

Each operation is asked in its largest form of a server that is full of objects, several times ahead of the answers. A
new operation joins by its place in the table: ``LARGEST`` gives values by the names of fields, and the test names a
field that has none. ``CMQD_COST_MESSAGES`` sets the number of messages.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.handlers.pins import MAX_LIMIT
from cmqd_protocol import messages as wire
from cmqd_protocol.operations import OPERATIONS, Cost
from support.costs.c_arguments import CArguments
from support.costs.cost_counter import CostCounter
from support.costs.full_broker import BATCH, LIMITS, URL, FullBroker
from support.server.server_rig import RigClient

BOUND = 30_000
"""Lines and calls of Python between two looks at a timer: some 1.5 ms."""
MESSAGE_BOUND = 80
"""Lines and calls for each message of a page that arrives, or of requests that are collected: their cost is constant
for each message, and no timer is looked at."""
MESSAGES = int(os.environ.get("CMQD_COST_MESSAGES", "25600"))
"""Messages of each set of a full queue: a line for each alone would exceed the bound."""
MAX_ARGUMENT = LIMITS.max_queues_per_account
"""Entries that a call of a C function works through; seen from Python 3.12 on. Sets of positions are compressed."""
AHEAD = 3 if "CMQD_COST_MESSAGES" in os.environ else 2
"""Requests of a kind that are sent ahead of the answers; the part costs of ``make test-all`` has one more."""
TURNS = 5_000
"""Turns of the loop in which requests are answered."""

LARGEST: dict[str, Any] = {
    "queue": "full",
    "topic": "wide",
    "subscription": "subscription-000",
    "schedule": "schedule-0000",
    "bodies": [b"x"] * BATCH,
    "body": b"x" * 60_000,
    "max_messages": BATCH,
    "wait_ms": 0,
    "visibility_timeout_ms": 60_000,
    "reasons": ["broken"] * BATCH,
    "attributes": {},
    "limit": LIMITS.max_list,
    "decisions": [wire.COMMIT],
    "secret_id": "AKIDabsent",
    "secret_key": "0123456789abcdef0123456789abcdef",
    "roles": ["read"],
    "names": ["*q*q*q"],
    "name": "full",
    "enabled": True,
    "time_ms": 0,
}
"""The largest legal value of a field, by its name. Fields without an entry have their default."""


def special_values(full: FullBroker) -> dict[type[wire.Request], dict[str, Any]]:
    """Return the values of operations that need another object than ``full``, or have other fields."""
    filters = [f"tag-{number}" for number in range(5)]
    changed = {"dead_letter_queue": "dead-2", "dead_letter_max_receives": 1}
    tags = [f"tag-{number}" for number in range(LIMITS.max_tags)]
    schedule = {"queue": "full", "cron": "*/5 * * * *", "zone": "Europe/Berlin"}
    half = {"queue": "half"}
    return {
        wire.CreateQueue: {"queue": "new", "attributes": {"rewind_ms": 60_000}},
        wire.SetQueueAttributes: {"queue": "changed", "attributes": changed},
        wire.ClearQueue: {"queue": "cleared"},
        wire.DeleteQueue: {"queue": "rewound"},
        wire.RewindQueue: {"queue": "rewound"},
        wire.ListDeadLetterSources: {"queue": "dead"},
        wire.ListQueueSubscriptions: {"queue": "wanted"},
        wire.StartRedrive: {"queue": "dead", "max_per_second": 1},
        wire.CancelRedrive: {"queue": "dead"},
        wire.GetRedrive: {"queue": "dead"},
        wire.DeadLetterMessages: {"queue": "source-0", "receipt_handles": full.handles["source-0"]},
        wire.GetMessageHistory: {"message_id": full.published_ids[1]},
        wire.FindMessages: {"source": "full", "header": ("name" * 2048, "value" * 1638)},
        wire.PeekMessages: {"states": ["active", "in_flight", "delayed", "rewindable"]},
        wire.ListQueues: {"search": "queue-"},
        wire.ListAllQueues: {"search": "queue-"},
        wire.ListQueueSummaries: {"search": "queue-", "sort": "age", "descending": True},
        wire.ListTopics: {"search": "topic-"},
        wire.ListSchedules: {"search": "schedule-"},
        wire.CreateTopic: {"topic": "new", "attributes": {"filter_type": "routing"}},
        wire.DeleteTopic: {"topic": "unused"},
        wire.PublishMessages: {"tags": [tags] * BATCH},
        wire.MatchSubscriptions: {"tags": tags},
        wire.Subscribe: {"subscription": "new", "attributes": {"endpoint": "queue-00001", "filter_tags": filters}},
        wire.EnsureSubscription: {"attributes": {"endpoint": URL}},
        wire.SetSubscriptionAttributes: {"attributes": {"filter_tags": filters, "strategy": "backoff"}},
        wire.PeekDeliveries: {"bodies": True},
        wire.RetryDelivery: {"message_id": full.published_ids[1]},
        wire.Unsubscribe: {"subscription": "subscription-001"},
        wire.DropDeliveries: {"subscription": "subscription-002"},
        wire.SendHalfMessages: half,
        wire.EndTransactions: {**half, "message_ids": full.half_ids[:BATCH]},
        wire.ListHalfMessages: half,
        wire.RegisterChecker: half,
        wire.UnregisterChecker: half,
        wire.CreateAccount: {"account": "new"},
        wire.DeleteAccount: {"account": "new"},
        wire.SetSchedule: {"attributes": schedule, "body": b"x"},
        wire.CreateSchedule: {"schedule": "new", "attributes": schedule},
        wire.EnsureSchedule: {"body": b"x"},
        wire.DeleteSchedule: {"schedule": "schedule-0001"},
        wire.ListPinnedSegments: {"pin_id": full.pin.pin_id, "limit": MAX_LIMIT},
        wire.SetStandingPin: {"log_id": "", "lsn": 0, "start": "", "pinned_ms": 0, "every_ms": 60_000},
        wire.ReleasePin: {"pin_id": full.pin.pin_id},
    }


LAST: tuple[type[wire.Request], ...] = (
    wire.DeleteKey,
    wire.DeleteStandingPin,
    wire.UnregisterChecker,
    wire.StartRedrive,
    wire.GetRedrive,
    wire.CancelRedrive,
    wire.RewindQueue,
    wire.ClearQueue,
    wire.DeleteQueue,
    wire.SetQueueAttributes,
)
"""Operations behind all others, in this order: they need an earlier operation, or change what others read."""

NOT_ALLOWED = {wire.GetKeySecret, wire.WatchKeys}
"""Operations that need the role of a gateway."""


OF_MANY_NAMES: tuple[type[wire.Request], ...] = (
    wire.ListQueues,
    wire.ListAllQueues,
    wire.ListQueueSummaries,
    wire.ListTopics,
    wire.ListSchedules,
    wire.ListSubscriptions,
    wire.ListQueueSubscriptions,
    wire.GetQueueMetrics,
)
"""Operations that compare many names with the patterns of a restricted key."""
PATTERNS = ["wide", "full", "wanted", "*-0*5", "schedule-*"]


def largest_request(kind: type[wire.Request], request_id: int, full: FullBroker) -> wire.Request:
    """Return the largest request of a kind.

    Raises:
        AssertionError: a field has no value.
    """
    handles = full.handles["full"]
    values = LARGEST | {"receipt_handles": handles[:BATCH], "message_id": full.published_ids[0]}
    values |= special_values(full).get(kind, {})
    fields = [field for field in msgspec.structs.fields(kind) if field.name != "request_id"]
    lacking = [field.name for field in fields if field.required and field.name not in values]
    assert not lacking, f"give the largest value of {', '.join(lacking)} of {kind.__name__} in LARGEST"
    chosen = {field.name: values[field.name] for field in fields if field.name in values}
    return kind(request_id, **chosen)


class Costs:
    """The costs of the largest requests of each kind."""

    def __init__(self, full: FullBroker, client: RigClient) -> None:
        self._full = full
        self._client = client
        self._counter = CostCounter(full.rig.timer)
        self.arguments = CArguments()
        self.refused: dict[str, str] = {}
        """Texts of refusals: a refused request is not the largest."""
        self.sliced: set[str] = set()
        """Operations that were carried out in slices."""
        self.too_large: dict[str, object] = {}
        """Counts above the bounds, and the functions with most lines."""

    async def measure(self, kind: type[wire.Request]) -> None:
        """Ask the largest requests of a kind ahead of the answers."""
        client, counter = self._client, self._counter
        counter.restart()
        ids = [client.next_id() for _ in range(AHEAD)]
        for request_id in ids:
            client.machine.send(largest_request(kind, request_id, self._full))
        data = b"".join(client.machine.data_to_send(0))
        with counter.counting(), self.arguments.watching():
            client.connection.data_received(data)
        first, *_ = [await self._reply(request_id, kind) for request_id in ids]
        if isinstance(first, wire.Error) and kind not in NOT_ALLOWED:
            self.refused[kind.__name__] = first.text
        bound = AHEAD * BATCH * MESSAGE_BOUND if OPERATIONS[kind].cost is Cost.CONSTANT else BOUND
        if counter.largest > bound or counter.largest_page > LIMITS.page_messages * MESSAGE_BOUND:
            counts = counter.largest, counter.largest_page
            self.too_large[kind.__name__] = (*counts, counter.largest_lines.most_common(5))

    async def _reply(self, request_id: int, kind: type[wire.Request]) -> object:
        client, slices = self._client, self._full.rig.server.part(SlicedWork)
        for turn in range(TURNS):
            client.read()
            if slices:
                self.sliced.add(kind.__name__)
            if request_id in client.replies:
                return client.replies.pop(request_id)
            with self._counter.counting(), self.arguments.watching():
                await self._full.rig.turn(1)
            # Slices have pauses between them.
            await asyncio.sleep(0 if turn < 10 else 0.0005)
        raise AssertionError(f"no answer to request {request_id}")


def in_order(kind: type[wire.Request]) -> tuple[int, str]:
    return (LAST.index(kind) + 1 if kind in LAST else 0, kind.__name__)


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[FullBroker]:
    """A server that is full of objects."""
    full = await FullBroker.make(tmp_path, MESSAGES)
    yield full
    full.rig.close()


async def test_no_operation_runs_many_lines_between_two_looks_at_the_timer(full: FullBroker) -> None:
    costs = Costs(full, full.client)
    accounts = full.rig.accounts
    reader = await full.rig.client(await accounts.create_role_key("admin", None, ["read", "admin"], PATTERNS, 1))
    restricted = Costs(full, reader)

    for kind in OF_MANY_NAMES:
        await restricted.measure(kind)
    for kind in sorted(OPERATIONS, key=in_order):
        await costs.measure(kind)

    for measured in (restricted, costs):
        assert not measured.refused
        assert not measured.too_large
        assert measured.arguments.largest <= MAX_ARGUMENT, measured.arguments.place
    # The log in memory has no sealed segments, so their list needs no slice. Histories and searches read the log.
    sliced = {kind.__name__ for kind, operation in OPERATIONS.items() if operation.cost is Cost.SLICED}
    assert costs.sliced == sliced - {"ListSegments", "GetMessageHistory", "FindMessages"}
