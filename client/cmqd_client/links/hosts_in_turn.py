"""Opens a connection to a service with several addresses, tried in turn, and follows ``standby`` and ``moved``.

An attempt tries every address at most once, without a pause in between; the pauses between attempts belong to
``link``. The order of an attempt:

1. the addresses that a refused request, or the end of the last connection, named as the leader's;
2. the other addresses, from that of the last connection on: a host that served last is likely up, while the first host
   of the URL may be down for long. Hosts that could not be reached in the last attempt come last, because each can
   take the whole time of a connect.

A refusal that names the leader puts the leader next. A circle of standbys ends the attempt, because no address is tried
twice.

Learned addresses come beside the addresses of the URL, with the URL's key, region and TLS. Of more than ``MAX_LEARNED``
the oldest are forgotten. The welcome of a leader names the other servers of its log.

``open_beside`` tries a single address, beside a connection that does not answer; see ``looking``.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from cmqd_client.address import Address, host_and_port
from cmqd_client.connection import Connection, OnEnded, OnPush
from cmqd_client.errors import CmqError, Elsewhere, ServerUnreachable

MAX_LEARNED = 16
"""Limit of the addresses beside the URL's addresses: more than the servers of a log, and an end for an attempt with
servers that name ever new addresses."""

FIRST_CONNECT_TIMEOUT = 1.0
"""Longest time in seconds for an address in the first attempt, if there are several: a host without power must not
hold up the way to its standby. The time doubles after every attempt without an answer, until a slow network gets the
whole connect timeout."""


class Opener(Protocol):
    """Opens connections: ``Connection.open`` with all other arguments given."""

    def __call__(  # noqa: D102 - said above
        self, *, on_ended: OnEnded, next_request_id: Callable[[], int], on_push: OnPush
    ) -> Awaitable[Connection]: ...

    def open_beside(
        self, connection: Connection, *, on_ended: OnEnded, next_request_id: Callable[[], int], on_push: OnPush
    ) -> Awaitable[Connection]:
        """Open a connection to the next address beside the address of a connection."""
        ...

    def has_others(self, connection: Connection) -> bool:
        """True if an address is known beside the address of the connection."""
        ...

    def learn(self, addresses: Sequence[str]) -> None:
        """Note addresses that a server names."""
        ...


Follow: TypeAlias = Callable[[Address], Address | None]
"""Returns the address to use for an address that a server names; None = none."""


class AddressOpener(Protocol):
    """Like :class:`Opener`, for the given address and time limit in seconds."""

    def __call__(  # noqa: D102 - said above
        self,
        address: Address,
        /,
        *,
        timeout: float,
        on_ended: OnEnded,
        next_request_id: Callable[[], int],
        on_push: OnPush,
    ) -> Awaitable[Connection]: ...


class HostsInTurn:
    """Opens connections to the first address that serves; an :class:`Opener`."""

    __slots__ = (
        "_addresses",
        "_beside",
        "_dark",
        "_failures",
        "_first",
        "_follow",
        "_leader",
        "_learned",
        "_open",
        "_timeout",
        "_unreachable",
    )

    def __init__(
        self,
        open_connection: AddressOpener,
        addresses: Sequence[Address],
        timeout: float,
        follow: Follow | None = None,
    ) -> None:
        """Take the addresses, a single one or more, and the timeout of an address in seconds."""
        self._open = open_connection
        self._follow = follow
        self._beside = 0
        """Attempts of ``open_beside``: the next attempt takes the next address."""
        self._dark = 0
        """Attempts of ``open_beside`` in a row without an answer."""
        self._addresses = addresses
        self._timeout = timeout
        self._learned: list[Address] = []
        """Newest first."""
        self._leader: list[Address] = []
        """Named as the leader's since the last connection."""
        self._first = addresses[0]
        """Address of the last connection."""
        self._unreachable: set[Address] = set()
        """Addresses that could not be reached in the last attempt."""
        self._failures = 0
        """Attempts in a row without an answer of a server."""

    async def __call__(self, *, on_ended: OnEnded, next_request_id: Callable[[], int], on_push: OnPush) -> Connection:
        """Connect to the first address that serves. Safe to cancel.

        Raises:
            ServerUnreachable: no host can be reached; the text names the reason of each host.
            CmqError: otherwise the first retryable error of a host, else the first error. The refusal of a
                standby that names a further host counts only if no other host has answered: a standby checks no client.
        """
        ended = self._note_ended(on_ended)
        errors: list[CmqError] = []
        untried = deque(self._in_order())
        tried: set[Address] = set()
        timeout = self._timeout
        if len(untried) > 1:
            timeout = min(timeout, FIRST_CONNECT_TIMEOUT * 2.0 ** min(self._failures, 30))
        self._unreachable = set()
        while untried:
            address = untried.popleft()
            if address in tried:
                continue
            tried.add(address)
            try:
                connection = await self._open(
                    address, timeout=timeout, on_ended=ended, next_request_id=next_request_id, on_push=on_push
                )
            except Elsewhere as error:
                errors.append(error)
                if len(tried) <= len(self._addresses) + MAX_LEARNED:
                    untried.extendleft(reversed(self._learn(error.addresses)))
            except CmqError as error:
                errors.append(error)
                if isinstance(error, ServerUnreachable):
                    self._unreachable.add(address)
            else:
                self._first, self._leader, self._failures = address, [], 0
                return connection
        if len(errors) == len(self._unreachable):
            self._failures += 1
            if len(errors) > 1:
                raise ServerUnreachable("; ".join(error.text for error in errors)) from errors[-1]
        else:
            self._failures = 0
        # A host that refuses this client for good must not end the attempts while a further host may come back. A
        # standby does not count as a host that may come back: a wrong key would be tried again until the caller gives
        # up.
        answers = [error for error in errors if not isinstance(error, Elsewhere)] or errors
        raise next((error for error in answers if error.retryable), answers[0])

    # ------------------------------------------------------------------ beside a connection

    def learn(self, addresses: Sequence[str]) -> None:
        """Remember addresses that a server names; malformed addresses are left out."""
        self._learn(addresses)

    def has_others(self, connection: Connection) -> bool:
        """True if an address is known beside the address of the connection."""
        return bool(self._others(connection))

    async def open_beside(
        self, connection: Connection, *, on_ended: OnEnded, next_request_id: Callable[[], int], on_push: OnPush
    ) -> Connection:
        """Connect to the next address beside the address of a connection, in turns. Safe to cancel.

        Raises:
            CmqError: the address does not lead to the leader.
        """
        others = self._others(connection)
        address = others[self._beside % len(others)]
        self._beside += 1
        rounds = min(self._dark // len(others), 30)
        try:
            found = await self._open(
                address,
                timeout=min(self._timeout, FIRST_CONNECT_TIMEOUT * 2.0**rounds),
                on_ended=self._note_ended(on_ended),
                next_request_id=next_request_id,
                on_push=on_push,
            )
        except CmqError as error:
            self._dark = self._dark + 1 if isinstance(error, ServerUnreachable) else 0
            if isinstance(error, Elsewhere):
                self._learn(error.addresses)
            raise
        self._first, self._leader, self._failures, self._dark = address, [], 0, 0
        return found

    def _others(self, connection: Connection) -> list[Address]:
        known = dict.fromkeys([*self._addresses, *self._learned])
        return [address for address in known if f"{address.host}:{address.port}" != connection.host]

    # ------------------------------------------------------------------ inside

    def _note_ended(self, on_ended: OnEnded) -> OnEnded:
        def ended(connection: Connection) -> None:
            if connection.elsewhere is not None:
                self._leader = self._learn(connection.elsewhere.addresses)
            on_ended(connection)

        return ended

    def _in_order(self) -> list[Address]:
        known = [*self._addresses, *self._learned]
        # The address of the last connection may have been learned, and forgotten since.
        start = known.index(self._first) if self._first in known else 0
        known = known[start:] + known[:start]
        known.sort(key=self._unreachable.__contains__)
        # Without doubles: the leader's addresses are among the known addresses, too.
        return list(dict.fromkeys([*self._leader, *known]))

    def _learn(self, addresses: Sequence[str]) -> list[Address]:
        """Remember addresses that a server names; return them, in their order. A malformed address is left out."""
        named: list[Address] = []
        for text in addresses[:MAX_LEARNED]:
            try:
                host, port = host_and_port(text)
            except ValueError:
                continue
            address = msgspec.structs.replace(self._addresses[0], host=host, port=port)
            followed = address if self._follow is None or address in self._addresses else self._follow(address)
            if followed is not None:
                named.append(followed)
        new = [address for address in named if address not in self._addresses]
        self._learned = list(dict.fromkeys([*new, *self._learned]))[:MAX_LEARNED]
        return named
