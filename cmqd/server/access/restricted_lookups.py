"""Look-ups for keys with name patterns: the comparison of many names in slices.

A list compares every name of an account with the patterns of the key, and 10,000 names take 240 ms with 50 patterns.
A look-up that needs more comparisons than a call of the loop may make is therefore carried out in rounds. Each round
reads the whole reply from the core, in one call, with the comparisons made so far, and notes the names that it lacks.
Slices compare these names (``sliced_work``), and the next round follows. A round that lacks no name makes the answer:
the reply shows the state of one moment, with the total and the page of that moment, and waits at the gate for the last
LSN of that moment. A page joined from slices could lack a queue that was there all the time.

The connection is held meanwhile: its later requests would otherwise take effect before the list. A connection thus has
one list under way, and an account the comparisons of one list, because ``sliced_work`` finishes a piece of work of an
account before the next.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import filterfalse, repeat
from typing import Final, TypeAlias

from cmqd.core.domain_errors import DomainError
from cmqd.log.log_errors import LogFailed
from cmqd.server.access.permissions import Permissions
from cmqd.server.admission.sliced_work import SlicedWork
from cmqd.server.clients.client import Client
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.refusals import BUSY_RETRY_MS
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.protocol_errors import ErrorCode

Read: TypeAlias = Callable[["ComparedNames"], wire.AnyReply]
"""Reads the reply to a look-up from the core, with the names that the key sees. May be called several times."""

MAX_ROUNDS: Final = 8
"""Rounds of a look-up. Two or three are usual; more if other clients create names faster than slices compare names,
and such a flood must neither keep a list for ever nor let its comparisons grow."""
HALTED: Final = "the broker stopped while the names were compared"


class ComparedNames:
    """The comparisons of a look-up; see ``shown_names.Names``."""

    def __init__(self, permissions: Permissions) -> None:
        self.roles = permissions.roles
        self.sees_hosts = permissions.sees_hosts
        self.permissions = permissions
        self._shows: dict[str, bool] = {}
        self._lacking: dict[str, None] = {}
        """Names in the order in which the round asked for them; no set, so that slices are the same in each run."""
        self._more = 0
        """Names that this round may still compare itself."""

    def allows_name(self, name: str) -> bool:
        """Return True if the key sees a name; False too if the name is still to be compared."""
        shows = self._shows.get(name)
        if shows is not None:
            return shows
        if not self._more:
            self._lacking[name] = None
            return False
        self._more -= 1
        shows = self._shows[name] = self.permissions.allows_name(name)
        return shows

    def allow_names(self, names: Sequence[str]) -> Iterable[bool]:
        """Return for each name whether the key sees it; False too if the name is still to be compared.

        In calls over all names and not name by name: a round over 10,000 names takes a millisecond so.
        """
        shows = self._shows
        unknown = list(filterfalse(shows.__contains__, names))
        now = unknown[: self._more]
        self._more -= len(now)
        self.compare(now)
        self._lacking.update(dict.fromkeys(unknown[len(now) :]))
        return map(shows.get, names, repeat(False))

    def begin_round(self) -> None:
        """Forget the names that the last round lacked."""
        # Part of a slice: the round itself takes time too, up to 1 ms with 10,000 names.
        self._more = max(1, self.permissions.names_at_once // 4)
        self._lacking = {}

    @property
    def lacking(self) -> Sequence[str]:
        """Names that the round could not compare: its reply is not valid unless there are none."""
        return list(self._lacking)

    def compare(self, names: Sequence[str]) -> None:
        """Compare names with the patterns."""
        allows_name = self.permissions.allows_name
        self._shows.update((name, allows_name(name)) for name in names)


@part
class RestrictedLookups:
    """Answers look-ups of keys with name patterns; see the module."""

    answering: Answering
    work: SlicedWork
    schedule: Callable[[], None]

    def answer(self, client: Client, request: wire.Request, permissions: Permissions, read: Read) -> None:
        """Answer at once if few names are compared, else in slices.

        Raises:
            DomainError: the core refuses the look-up.
        """
        names = ComparedNames(permissions)
        names.begin_round()
        reply = read(names)
        if not names.lacking:
            self.answering.answer_lookup(client, reply)
            return
        # The slices begin anew: comparisons kept from here on would fill the memory for each held connection.
        client.hold()
        self.work.add(client.account, self._in_slices(client, request, permissions, read))

    def _in_slices(
        self, client: Client, request: wire.Request, permissions: Permissions, read: Read
    ) -> Generator[None]:
        names = ComparedNames(permissions)
        at_once = permissions.names_at_once
        for _ in range(MAX_ROUNDS):
            if not self._goes_on(client, request, permissions):
                return
            names.begin_round()
            try:
                reply = read(names)
            except DomainError as refusal:
                self.answering.refuse(client, request.request_id, refusal)
                self._release(client)
                return
            except LogFailed as failure:
                client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure)))
                self._release(client)
                return
            lacking = names.lacking
            if not lacking:
                self.answering.answer_lookup(client, reply)
                self._release(client)
                return
            for start in range(0, len(lacking), at_once):
                yield
                if not self._goes_on(client, request, permissions):
                    return
                names.compare(lacking[start : start + at_once])
            yield
        text = "queues, topics or schedules are created faster than their names are compared with the key's; try again"
        client.answer(error(request.request_id, ErrorCode.BUSY, text, retry_after_ms=BUSY_RETRY_MS))
        self._release(client)

    def _goes_on(self, client: Client, request: wire.Request, permissions: Permissions) -> bool:
        """Return False if the look-up ends here: without a client, without a core, or with other permissions."""
        if client.is_gone:
            return False
        if self.answering.is_halted:
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, HALTED))
        elif client.permissions is not permissions:
            # The changed key may lack the role or the names of the request, so the request is checked again.
            client.put_back(request)
        else:
            return True
        self._release(client)
        return False

    def _release(self, client: Client) -> None:
        client.release()
        self.schedule()
