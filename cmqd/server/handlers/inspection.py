"""Requests about the inside of the server: its connections, waiting receives, consumers and settings.

A server can have hundreds of thousands of connections, so a list is made in slices (``sliced_work``): each slice
examines some connections and sorts them, then the sorted runs are merged as far as the page goes. Connections come and
go in between; a list shows each connection at its own moment, and leaves out connections that closed before their
turn. Nothing is kept between requests, and an idle connection costs no entry in any table of this module.

The replies wait for no commit: connections and receives are no facts of the log, and an operator needs the lists above
all while the storage hangs. Lists of consumers have messages in flight, which are facts, and wait like other look-ups.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import InvalidArgument, shown
from cmqd.core.limits import check_range
from cmqd.server.access.accounts import Accounts
from cmqd.server.access.accounts_file import ADMIN
from cmqd.server.access.shown_names import names_compared_at_once, names_shown_to
from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.clients.client import Client
from cmqd.server.clients.connections import Connection, Connections
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.replies.waiting_requests import WaitingRequests
from cmqd.server.requests.handler import handles
from cmqd.settings import SETTINGS, Settings
from cmqd_protocol import messages as wire
from cmqd_types.inspection import CONNECTION_SORTS, ConnectionInfo, SettingInfo, WaitingReceiveInfo

_T = TypeVar("_T")

MAX_LIST: Final = 1_000
"""Most entries of a reply: the encoding takes about 0.5 ms."""
EXAMINED_A_SLICE: Final = 150
"""Connections or waiting requests of a slice, about 4 us each."""
MERGED_A_SLICE: Final = 500
"""Entries of sorted runs that a slice skips, about 1.5 us each."""

Ranked: TypeAlias = tuple[Any, int, Connection]
"""The value to sort by, the number of the connection, and the connection."""
_SORT_KEYS: Final[Mapping[str, Callable[[ConnectionInfo], Any]]] = {
    sort: attrgetter(f"{sort}_ms" if sort in ("since", "last_request") else sort) for sort in CONNECTION_SORTS
}


@part
class Inspection:
    """Answers requests about the inside of the server; see the module.

    A request without a client to answer is dropped at its next slice.
    """

    broker: Broker
    answering: Answering
    accounts: Accounts
    connections: Connections
    waiting_requests: WaitingRequests
    settings_in_force: Callable[[], Settings]
    """Returns the settings of the start, with the settings that a reload has taken."""
    now_ms: Callable[[], int]
    schedule: Callable[[], None]
    work: SlicedWork

    @handles(wire.ListConnections)
    def list_connections(self, client: Client, request: wire.ListConnections) -> None:
        """List the connections of the account of a key, for ``admin`` of all accounts."""
        _check_page(request.offset, request.limit)
        if request.sort not in _SORT_KEYS:
            raise InvalidArgument(
                f"{shown(request.sort)} is no order of connections; the orders are {', '.join(CONNECTION_SORTS)}",
                field="sort",
                value=request.sort,
                limit=f"one of {', '.join(CONNECTION_SORTS)}",
            )
        self.work.add(client.account, self._connections(client, request))

    @handles(wire.ListWaitingReceives)
    def list_waiting_receives(self, client: Client, request: wire.ListWaitingReceives) -> None:
        """List the waiting receives of the account of a key, for ``admin`` of all accounts, in order of arrival."""
        _check_page(request.offset, request.limit)
        self.work.add(client.account, self._waiting_receives(client, request))

    @handles(wire.ListConsumers)
    def list_consumers(self, client: Client, request: wire.ListConsumers) -> None:
        """List the consumers of queues of the account of a key, for ``admin`` of all accounts."""
        self.broker.check_consumer_list(request.offset, request.limit)
        self.work.add(client.account, self._consumers(client, request))

    @handles(wire.GetSettings)
    def get_settings(self, client: Client, request: wire.GetSettings) -> None:
        """Answer with the settings in force, for ``admin``."""
        self.accounts.must_be_admin(client.account, "read the settings")
        client.answer(wire.SettingList(request.request_id, settings_shown(self.settings_in_force())))

    def _connections(self, client: Client, request: wire.ListConnections) -> Generator[None]:
        if client.is_slow:
            # The memory of finished lists would grow with each further request of a client that does not read.
            client.park(request)
            return
        account, search, key_of = _account(client), request.search.casefold(), _SORT_KEYS[request.sort]
        runs: list[list[Ranked]] = []
        total = 0
        for candidates in _sliced(self.connections.current()):
            if client.is_gone:
                return
            now_ms = self.now_ms()
            run: list[Ranked] = []
            for connection in candidates:
                if not connection.account or account not in (None, connection.account):
                    continue
                info = connection.info(now_ms)
                if not search or _matches(search, info.account, info.secret_id, info.peer, info.product, info.name):
                    run.append((key_of(info), info.connection_id, connection))
            # Numbers differ, so connections themselves are never compared.
            run.sort(key=_rank, reverse=request.descending)
            total += len(run)
            runs.append(run)
            yield
        ranked = merge(*runs, key=_rank, reverse=request.descending)
        yield from _skip(ranked, request.offset)
        shown_infos: list[ConnectionInfo] = []
        now_ms = self.now_ms()
        for number, (_, _, connection) in enumerate(islice(ranked, request.limit), 1):
            if self.connections.is_open(connection):
                shown_infos.append(connection.info(now_ms))
            if number % EXAMINED_A_SLICE == 0:
                yield
                if client.is_gone:
                    return
                now_ms = self.now_ms()
        client.answer(wire.ConnectionList(request.request_id, now_ms, total, shown_infos))
        self.schedule()

    def _waiting_receives(self, client: Client, request: wire.ListWaitingReceives) -> Generator[None]:
        if client.is_slow:
            client.park(request)
            return
        account, search = _account(client), request.search.casefold()
        receives: list[WaitingReceiveInfo] = []
        total = 0
        # Numbers, not the table: entries that were answered in a former slice must not be listed, nor kept in memory.
        for waiter_ids in _sliced(self.waiting_requests.ids(), names_compared_at_once(client)):
            if client.is_gone:
                return
            shows = names_shown_to(client)
            for waiter_id in waiter_ids:
                asker, receive = self.waiting_requests.get(waiter_id) or (None, None)
                if asker is None or asker.is_gone or not isinstance(receive, wire.ReceiveMessages):
                    continue
                if account not in (None, asker.account) or not shows(receive.queue):
                    continue
                if request.connection_id not in (0, asker.connection_id):
                    continue
                stated = receive.on_behalf_of
                name = asker.actor.name if stated is None else stated.name
                if search and not _matches(search, receive.queue, asker.account, asker.secret_id, name):
                    continue
                times = self.broker.waiting_receive(waiter_id)
                if times is None:
                    continue
                total += 1
                if request.offset < total <= request.offset + request.limit:
                    receives.append(
                        WaitingReceiveInfo(
                            account=asker.account,
                            queue=receive.queue,
                            connection_id=asker.connection_id,
                            secret_id=asker.secret_id,
                            peer=asker.peer,
                            product=asker.product,
                            max_messages=times.max_messages,
                            since_ms=times.since_ms,
                            until_ms=times.deadline_ms,
                            name=name,
                        )
                    )
            yield
        client.answer(wire.WaitingReceiveList(request.request_id, self.now_ms(), total, receives))
        self.schedule()

    def _consumers(self, client: Client, request: wire.ListConsumers) -> Generator[None]:
        if client.is_slow:
            client.park(request)
            return
        permissions = client.permissions
        shows_hosts = permissions is None or permissions.sees_hosts
        steps = self.broker.list_consumers(
            account=_account(client),
            queue=request.only_queue,
            search=request.search.casefold(),
            offset=request.offset,
            limit=request.limit,
            now_ms=self.now_ms(),
            shows=names_shown_to(client),
            shows_hosts=shows_hosts,
            most_compared=names_compared_at_once(client),
        )
        while not client.is_gone:
            try:
                next(steps)
            except StopIteration as end:
                total, consumers = end.value
                # Behind the disk, as every look-up of the index: a crash must not take the messages in flight back.
                reply = wire.ConsumerList(request.request_id, self.now_ms(), total, consumers)
                self.answering.answer_lookup(client, reply)
                self.schedule()
                return
            yield


def settings_shown(settings: Settings) -> list[SettingInfo]:
    """Return every setting with its value, default, origin and meaning."""
    defaults = Settings().as_table()
    shown_settings: list[SettingInfo] = []
    for name, value in settings.as_table().items():
        described, origin = SETTINGS[name], settings.origin_of(name)
        shown_settings.append(
            SettingInfo(
                name=name,
                section=described.section,
                value=value,
                default=defaults[name],
                origin=origin.kind,
                place=origin.place,
                meaning=described.text,
                allowed=described.allowed,
            )
        )
    return shown_settings


def _account(client: Client) -> str | None:
    """Return the account of a list; None = all accounts, for keys of ``admin`` whose patterns match all names."""
    permissions = client.permissions
    sees_all = client.account == ADMIN and (permissions is None or permissions.covers_every_name)
    return None if sees_all else client.account


def _check_page(offset: int, limit: int) -> None:
    check_range("offset", offset, 0, 1 << 31)
    check_range("limit", limit, 1, MAX_LIST)


def _matches(search: str, *texts: str) -> bool:
    return any(search in text.casefold() for text in texts)


def _rank(ranked: Ranked) -> tuple[Any, int]:
    return ranked[0], ranked[1]


def _sliced(entries: Sequence[_T], at_once: int = EXAMINED_A_SLICE) -> Iterable[Sequence[_T]]:
    """Return the entries in slices of at most ``at_once`` and ``EXAMINED_A_SLICE``."""
    size = min(at_once, EXAMINED_A_SLICE)
    return (entries[start : start + size] for start in range(0, len(entries), size))


def _skip(ranked: Iterable[Ranked], count: int) -> Generator[None]:
    """Skip the entries of earlier pages, some in each slice."""
    for number, _ in enumerate(islice(ranked, count), 1):
        if number % MERGED_A_SLICE == 0:
            yield
