"""The way of a request into the core: admission, the permissions of its key, then the handler of its kind.

Rules:

- Handlers translate and never decide. Arguments go to the core unchanged; replies are encoded from the core's result.
- The collected requests of a client are decided before its next request, unless that request is collected itself:
  requests of a connection take effect in their order.
- A refusal waits at the gate like a result, because the state that the core read may not be durable yet.
- Only a restricted key has permissions to check; a request of any other key pays for a comparison with None.
- The cost of a request that is not collected is not constant, so the timer is looked at after it, and ends the turn
  (``fairness``).
- Any other exception is a bug in the core: its state may now differ from the log. No further reply leaves, the
  process ends, and the next start recovers from the log.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from cmqd.core import domain_errors as domain
from cmqd.core.broker import Broker
from cmqd.log.log_errors import LogFailed
from cmqd.server.access.accounts import Accounts
from cmqd.server.access.audit_entries import AuditEntries
from cmqd.server.access.authorization import Authorization
from cmqd.server.access.restricted_lookups import ComparedNames, RestrictedLookups
from cmqd.server.access.shown_names import shown_to, shown_with
from cmqd.server.admission.fairness import TurnTime
from cmqd.server.admission.request_admission import Admission
from cmqd.server.clients.client import Client, actor_of
from cmqd.server.monitoring.counters import Counters
from cmqd.server.part import part
from cmqd.server.replies.answering import Answering
from cmqd.server.requests.collecting import Collector
from cmqd.server.requests.handler import Handler
from cmqd.server.requests.operations import CREATIONS, Location, call_of, parameters_of, reply_of
from cmqd_protocol import messages as wire
from cmqd_protocol.messages import error
from cmqd_protocol.operations import Cost, Kind, Operation, requests_of
from cmqd_protocol.protocol_errors import ErrorCode

TakeRun: TypeAlias = Callable[[Client, Sequence[Any]], int]
"""Takes up the first requests of a run of a kind; returns their number, 0 = the first request must go alone."""


@part
class Dispatcher:
    """Hands requests to their handlers; see the module."""

    handlers: Mapping[type[wire.Request], Handler]
    runs: Mapping[type[wire.Request], TakeRun]
    """Takes up the first requests of a run together, for kinds that may come in runs."""
    take_plain_sends: Callable[[Sequence[Client], Sequence[wire.SendMessages]], int]
    """Takes up the first of plain sends of several clients together, as a run."""
    answering: Answering
    admission: Admission
    authorization: Authorization
    collector: Collector
    counters: Counters
    turn_time: TurnTime

    def __post_init__(self) -> None:
        self._group_of = self.collector.group_of
        self._lone_sends = self.collector.lone_sends.sends
        self._collected = requests_of(lambda operation: operation.cost is Cost.CONSTANT)

    def dispatch(self, client: Client, request: wire.Request) -> None:
        """Have a request answered, now or later."""
        if client in self._lone_sends:
            self.take_lone_sends()
        self.counters.requests += 1
        kind = type(request)
        varies = kind not in self._collected
        if varies:
            if self._group_of:
                self.collector.decide_of(client)
                if client.is_held:
                    # A collected publish continues in slices, and this request must not overtake it.
                    self.counters.requests -= 1
                    client.put_back(request)
                    return
            self.turn_time.count()
        if self.admission.is_restricted and self.admission.refuses(client, request):
            return
        try:
            if client.permissions is not None:
                self.authorization.check(client, request)
            self.handlers[kind](client, request)
        except domain.DomainError as refusal:
            self.answering.refuse(client, request.request_id, refusal)
        except LogFailed as failure:
            # The process is about to end: the failure came between two calls of the loop.
            client.answer(error(request.request_id, ErrorCode.OUTCOME_UNKNOWN, str(failure)))
        except Exception as bug:
            self.answering.broke(bug, kind.__name__)
        if varies:
            self.turn_time.look()

    def dispatch_run(self, client: Client, run: Sequence[wire.Request]) -> int:
        """Have requests of a client and a kind answered in their order, as ``dispatch`` for each.

        Returns the number taken up: less than all if the client is held by a request of the run, or the turn is over.
        """
        if client in self._lone_sends:
            self.take_lone_sends()
        taken = 0
        take_run = self.runs.get(type(run[0]))
        # Runs are of collected kinds, so a run ends no group of another kind before its first request.
        while take_run is not None and taken < len(run) and not self.admission.is_restricted:
            if client.permissions is not None or client.is_held:
                break
            try:
                count = take_run(client, run[taken:] if taken else run)
            except Exception as bug:
                self.answering.broke(bug, type(run[0]).__name__)
                break
            if not count:
                break
            self.counters.requests += count
            taken += count
        # Requests that the group did not take go singly, with all checks.
        while taken < len(run) and not client.is_held and not self.turn_time.is_over:
            self.dispatch(client, run[taken])
            taken += 1
        return taken

    def take_lone_sends(self) -> None:
        """Have the lone sends of several clients collected, as ``dispatch`` for each."""
        clients, sends = list(self._lone_sends), list(self._lone_sends.values())
        # Before any send is taken up: a group that is decided early may look for lone sends.
        self._lone_sends.clear()
        taken = 0
        try:
            taken = self.take_plain_sends(clients, sends)
        except Exception as bug:
            self.answering.broke(bug, wire.SendMessages.__name__)
        self.counters.requests += taken
        for client, request in zip(clients[taken:], sends[taken:], strict=True):
            self.dispatch(client, request)


def plain_handlers(
    *,
    plain: Iterable[Operation[..., Any]],
    broker: Broker,
    answering: Answering,
    accounts: Accounts,
    admission: Admission,
    location: Location,
    now_ms: Callable[[], int],
    restricted: RestrictedLookups,
    audit_entries: AuditEntries,
) -> dict[type[wire.Request], Handler]:
    """Return the handlers of operations that only call the core and answer."""

    def change(operation: Operation[..., Any]) -> Handler:
        call, make_reply = call_of(operation, broker), reply_of(operation)
        stores_body = "body" in operation.request.__struct_fields__
        is_creation = operation in CREATIONS
        names_actor = "actor" in parameters_of(operation, broker)

        def handle(client: Client, request: Any) -> None:
            if is_creation:
                accounts.check_exists(client.account)
            has_body = stores_body and request.body is not None
            if has_body and admission.refuses_bodies(client, request.request_id):
                return
            time_ms = now_ms()
            named = {"actor": actor_of(client, request)} if names_actor else {}
            outcome = call(client.account, request, time_ms, **named)
            if operation.is_administration:
                outcome = audit_entries.with_entry(client, request, outcome, time_ms)
            reply = shown_to(client, make_reply(request.request_id, outcome.reply, location))
            answering.answer(client, outcome, time_ms, reply)

        return handle

    def look_up(operation: Operation[..., Any]) -> Handler:
        call, make_reply = call_of(operation, broker), reply_of(operation)
        is_list = "selects" in parameters_of(operation, broker)

        def handle(client: Client, request: Any) -> None:
            permissions = client.permissions
            if permissions is not None and not permissions.covers_every_name:
                restricted.answer(client, request, permissions, lambda names: read(client, request, names))
                return
            result = call(client.account, request, now_ms())
            answering.answer_lookup(client, shown_to(client, make_reply(request.request_id, result, location)))

        def read(client: Client, request: Any, names: ComparedNames) -> wire.AnyReply:
            named = {"selects": names.allow_names} if is_list else {}
            result = call(client.account, request, now_ms(), **named)
            return shown_with(names, make_reply(request.request_id, result, location))

        return handle

    return {each.request: look_up(each) if each.kind is Kind.LOOKUP else change(each) for each in plain}
