"""Opens a connection to a service with several hosts, tried in turn.

Each attempt begins with the host of the last connection, because a host that served last is likely up, while the first
host of the URL may be down for long. An attempt tries every host once, without a pause in between; the pauses between
attempts belong to ``link``.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from cmqd_client.address import Address
from cmqd_client.connection import Connection, OnEnded, OnPush
from cmqd_client.errors import CmqError, ServerUnreachable


class Opener(Protocol):
    """Opens a connection: ``Connection.open`` with all other arguments given."""

    def __call__(  # noqa: D102 - said above
        self, *, on_ended: OnEnded, next_request_id: Callable[[], int], on_push: OnPush
    ) -> Awaitable[Connection]: ...


class AddressOpener(Protocol):
    """Like :class:`Opener`, for the given address."""

    def __call__(  # noqa: D102 - said above
        self, address: Address, /, *, on_ended: OnEnded, next_request_id: Callable[[], int], on_push: OnPush
    ) -> Awaitable[Connection]: ...


class HostsInTurn:
    """Opens connections to the first host that answers; an :class:`Opener`."""

    __slots__ = ("_addresses", "_first", "_open")

    def __init__(self, open_connection: AddressOpener, addresses: Sequence[Address]) -> None:
        """Make an opener for these addresses, of which there must be at least one."""
        self._open = open_connection
        self._addresses = addresses
        self._first = 0

    async def __call__(self, *, on_ended: OnEnded, next_request_id: Callable[[], int], on_push: OnPush) -> Connection:
        """Connect to the first host that answers. Safe to cancel.

        Raises:
            ServerUnreachable: no host can be reached; the text names the reason of each host.
            CmqError: otherwise the first retryable error of a host, else the first error.
        """
        addresses = self._addresses
        errors: list[CmqError] = []
        for step in range(len(addresses)):
            index = (self._first + step) % len(addresses)
            try:
                connection = await self._open(
                    addresses[index], on_ended=on_ended, next_request_id=next_request_id, on_push=on_push
                )
            except CmqError as error:
                errors.append(error)
                continue
            self._first = index
            return connection
        if all(isinstance(error, ServerUnreachable) for error in errors) and len(errors) > 1:
            raise ServerUnreachable("; ".join(error.text for error in errors)) from errors[-1]
        # A host that refuses this client for good must not end the attempts while another host may come back.
        raise next((error for error in errors if error.retryable), errors[0])
