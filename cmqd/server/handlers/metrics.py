"""Metrics of queues, topics and the server, for monitoring systems, and lists of queues with their figures."""

import dataclasses
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

from cmqd.core.broker import Broker
from cmqd.core.facts.gone_totals import AccountTotals
from cmqd.core.operations.monitoring.top_metrics import Top
from cmqd.core.runtime.consumers import PRESENT_MS
from cmqd.server.access.accounts import Accounts
from cmqd.server.access.accounts_file import ADMIN
from cmqd.server.access.shown_names import name_shown_to, names_compared_at_once, names_shown_to
from cmqd.server.admission.entries_ahead import EntriesAhead
from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.clients.client import Client
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.handler import handles
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode
from cmqd_types.metrics import ServerMetrics

_T = TypeVar("_T")

Name: TypeAlias = tuple[str, str]
"""An account, and the name of a queue or topic."""
ReadSlice: TypeAlias = Callable[[Name, int], tuple[list[_T], Name | None]]
"""Reads at most a number of entries behind a name; returns them and the name behind which the next begin."""
Shared: TypeAlias = tuple[str | None, type[wire.Request], int]
"""Account (None = all accounts), kind and limit of requests that one reading can answer."""
Asker: TypeAlias = tuple[Client, int]
"""A client and the id of its request."""

SLICES_A_PAGE: Final = 9
"""Slices of a reply: more than a page of 1,000 queues takes. Slices without entries end the page too: the patterns of
a key may match few of very many names."""
ENTRIES_AT_ONCE: Final = 1_000
"""Queues in replies that are handed over in a slice: their encoding takes about 0.5 ms."""
ENTRIES_OF_TOTALS: Final = 16
"""Queues that cost as much to encode as a reply with totals."""
REFUSED_AT_ONCE: Final = 64
"""Requests that a slice refuses."""
HALTED: Final = "the broker stopped while the figures were read"


@part
class MetricsRequests:
    """Answers requests for metrics. Replies wait for the disk like every look-up: a monitoring system must not see a
    count that a crash can take back.

    A request without a client to answer is dropped at its next slice.
    """

    broker: Broker
    answering: Answering
    accounts: Accounts
    server_metrics: Callable[[], ServerMetrics]
    now_ms: Callable[[], int]
    schedule: Callable[[], None]
    work: SlicedWork
    entries_ahead: EntriesAhead
    _waiting: dict[Shared, list[Asker]] = dataclasses.field(default_factory=dict[Shared, list[Asker]], init=False)
    """Requests by the figures that they share, until the reading of these figures begins."""

    @handles(wire.GetMetrics)
    def totals(self, client: Client, request: wire.GetMetrics) -> None:
        """Add up the totals in steps and answer."""

        def reply_of(account: str | None, totals: AccountTotals) -> Callable[[int], wire.AnyReply]:
            queues, topics, subscriptions = self.broker.count_objects(account)
            now_ms, server = self.now_ms(), self.server_metrics() if account is None else None
            return lambda request_id: wire.Metrics(
                request_id,
                now_ms,
                totals.queues,
                totals.topics,
                totals.subscriptions,
                queues,
                topics,
                subscriptions,
                server,
            )

        self._share(client, request, 0, self.broker.add_up_totals, reply_of, lambda totals: 0)

    @handles(wire.GetTopMetrics)
    def top(self, client: Client, request: wire.GetTopMetrics) -> None:
        """Rank queues, topics and subscriptions in steps and answer."""
        limit = request.limit
        self.broker.check_top_limit(limit)

        def reply_of(account: str | None, top: Top) -> Callable[[int], wire.AnyReply]:
            del account
            now_ms = self.now_ms()
            return lambda request_id: wire.TopMetrics(request_id, now_ms, *top)

        def size_of(top: Top) -> int:
            return len(top.queues) + len(top.topics) + len(top.subscriptions)

        def begin(account: str | None) -> Generator[None, None, Top]:
            return self.broker.top_metrics(account, limit, consumers_since_ms=self.now_ms() - PRESENT_MS)

        self._share(client, request, limit, begin, reply_of, size_of)

    def _share(
        self,
        client: Client,
        request: wire.Request,
        limit: int,
        begin: Callable[[str | None], Generator[None, None, _T]],
        reply_of: Callable[[str | None, _T], Callable[[int], wire.AnyReply]],
        size_of: Callable[[_T], int],
    ) -> None:
        """Read figures in steps and answer all requests that waited for the same figures when the reading began.

        A request does not join a reading that has begun: the figures would be older than answers that the client got
        before its request.
        """
        account = None if client.account == ADMIN else client.account
        # The replies are encoded together at the end of the I/O batch.
        at_once = max(1, ENTRIES_AT_ONCE // max(limit, ENTRIES_OF_TOTALS))
        shared = (account, type(request), limit)
        askers = self._waiting.get(shared)
        if askers is not None:
            askers.append((client, request.request_id))
            return
        self._waiting[shared] = [(client, request.request_id)]

        def read() -> Generator[None]:
            askers = self._waiting.pop(shared)
            if limit and not self.entries_ahead.has_room():
                yield from self._refuse(askers)
                return
            steps = begin(account)
            while True:
                if self.answering.is_halted:
                    self._still_there(askers)
                    return
                # The last asker alone: with all askers, a slice would take as long as clients pipeline requests.
                while askers and askers[-1][0].is_gone:
                    askers.pop()
                if not askers:
                    return
                try:
                    next(steps)
                except StopIteration as end:
                    make_reply, size = reply_of(account, end.value), size_of(end.value)
                    break
                yield
            for start in range(0, len(askers), at_once):
                if start:
                    yield
                for client, request_id in self._still_there(askers[start : start + at_once]):
                    self.answering.answer_lookup(client, make_reply(request_id))
                self.schedule()
            if limit:
                self.entries_ahead.add(size)

        self.work.add(client.account, read())

    def _refuse(self, askers: list[Asker]) -> Generator[None]:
        """Refuse requests because pages wait for the disk, some in each slice."""
        for start in range(0, len(askers), REFUSED_AT_ONCE):
            if start:
                yield
            for client, request_id in self._still_there(askers[start : start + REFUSED_AT_ONCE]):
                client.answer(self.entries_ahead.refusal(request_id))
            self.schedule()

    def _still_there(self, askers: list[Asker]) -> list[Asker]:
        """Return the requests that can still be answered; after a failure of the broker they get an error instead."""
        present = [(client, request_id) for client, request_id in askers if not client.is_gone]
        if not self.answering.is_halted:
            return present
        for client, request_id in present:
            client.answer(error(request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
        return []

    @handles(wire.GetQueueMetrics)
    def queues(self, client: Client, request: wire.GetQueueMetrics) -> None:
        """Answer with a page of queues."""
        account, shows = self._account(client, request.all_accounts), names_shown_to(client)
        examined = names_compared_at_once(client)
        after = (request.after_account, request.after_queue)
        since_ms = self.now_ms() - PRESENT_MS
        self._add_page(
            client,
            request,
            lambda after, limit: self.broker.queue_metrics(
                account, after, limit, shows, examined, consumers_since_ms=since_ms
            ),
            after,
            wire.QueueMetricsPage,
            len,
        )

    @handles(wire.ListQueueSummaries)
    def summaries(self, client: Client, request: wire.ListQueueSummaries) -> None:
        """Rank the queues of the account in steps and answer with a page.

        Raises:
            InvalidArgument: an argument is unknown or out of range.
        """
        search, sort, selection, offset, limit = (
            *(request.search, request.sort, request.selection),
            *(request.offset, request.limit),
        )
        self.broker.check_queue_summaries(sort, selection, offset, limit)
        request_id = request.request_id

        def page() -> Generator[None]:
            if client.is_slow:
                client.park(request)
                return
            if not self.entries_ahead.has_room():
                client.answer(self.entries_ahead.refusal(request_id))
                self.schedule()
                return
            steps = self.broker.queue_summaries(
                *(client.account, search, sort, request.descending, selection, offset, limit),
                shows=names_shown_to(client),
                named=lambda name: name_shown_to(client, name),
                most_compared=names_compared_at_once(client),
            )
            while self._still_there([(client, request_id)]):
                try:
                    next(steps)
                except StopIteration as end:
                    total, queues = end.value
                    reply = wire.QueueSummaries(request_id, self.now_ms(), total, queues)
                    self.answering.answer_lookup(client, reply)
                    self.entries_ahead.add(len(queues))
                    self.schedule()
                    return
                yield

        self.work.add(client.account, page())

    @handles(wire.GetTopicMetrics)
    def topics(self, client: Client, request: wire.GetTopicMetrics) -> None:
        """Answer with a page of topics."""
        account, shows = self._account(client, request.all_accounts), names_shown_to(client)
        examined = names_compared_at_once(client)
        after = (request.after_account, request.after_topic)
        self._add_page(
            client,
            request,
            lambda after, limit: self.broker.topic_metrics(account, after, limit, shows, examined),
            after,
            wire.TopicMetricsPage,
            lambda topics: sum(1 + len(topic.subscriptions) for topic in topics),
        )

    def _add_page(
        self,
        client: Client,
        request: wire.GetQueueMetrics | wire.GetTopicMetrics,
        read: ReadSlice[_T],
        after: Name,
        make_reply: Callable[[int, int, list[_T], Name | None], wire.AnyReply],
        size_of: Callable[[list[_T]], int],
    ) -> None:
        """Join slices of the core to a page and answer.

        Large replies save time: a reply waits for the disk, and a reader asks for the next page only after the reply.

        Raises:
            InvalidArgument: the limit is out of range.
        """
        self.broker.check_metrics_limit(request.limit)
        limit, request_id = request.limit, request.request_id

        def page() -> Generator[None]:
            if client.is_slow:
                # The memory of finished pages would grow with each further request of a client that does not read.
                client.park(request)
                return
            if not self.entries_ahead.has_room():
                client.answer(self.entries_ahead.refusal(request_id))
                self.schedule()
                return
            entries: list[_T] = []
            behind: Name | None = after
            for _ in range(SLICES_A_PAGE):
                if not self._still_there([(client, request_id)]):
                    return
                assert behind is not None
                more, behind = read(behind, limit - len(entries))
                entries.extend(more)
                if behind is None or len(entries) >= limit:
                    break
                yield
            self.answering.answer_lookup(client, make_reply(request_id, self.now_ms(), entries, behind))
            self.entries_ahead.add(size_of(entries))
            self.schedule()

        self.work.add(client.account, page())

    def _account(self, client: Client, all_accounts: bool) -> str | None:
        """Return the account of a page, None for all accounts.

        Raises:
            PermissionDenied: all accounts were asked for, and the account is not ``admin``.
        """
        if not all_accounts:
            return client.account
        self.accounts.must_be_admin(client.account, "read the metrics of all accounts")
        return None
