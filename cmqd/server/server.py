"""The running server: its start, its drain and its end. ``wiring`` makes the server and its parts.

    socket → Listener/AcceptedConnection → Dispatcher → handlers → Broker (core)
                   ▲                                        │ outcome
                   │ replies                                ▼
               ReplyGate  ◄───────── LSN ─────────────  Answering → Log ── wants a checkpoint ──► Checkpoints
               IoBatch: replies leave in one write a client, then records in one write, once the sockets bring no more
               AgendaTimer: work that is due at a time ──► BrokerEvents
               Outbox: pushes, once durable and signable ──► Pusher ── results ──► BrokerEvents

``process.daemon`` is the process around the server (signals, recovery, exit codes); tests make the same server over a
log in memory. A second wire protocol is a package beside ``binary``: its listener gets the same parts.
"""

import asyncio
import socket
from typing import Any, TypeVar

from cmqd.core.broker import Broker
from cmqd.server.admission.fairness import RoundRobin
from cmqd.server.admission.request_admission import Admission
from cmqd.server.assembly import Assembly
from cmqd.server.binary.listener import Listener
from cmqd.server.broker_logger import get_logger
from cmqd.server.clients.client_events import ClientEvents
from cmqd.server.clients.connections import Connections
from cmqd.server.halt import Halt
from cmqd.server.log_upkeep.checkpoints import Checkpoints
from cmqd.server.log_upkeep.reclaim import Reclaim
from cmqd.server.loop.agenda_timer import AgendaTimer
from cmqd.server.loop.background_tasks import BackgroundTasks
from cmqd.server.loop.beat import Beat
from cmqd.server.loop.broker_events import BrokerEvents
from cmqd.server.loop.clock import BrokerClock
from cmqd.server.loop.io_batch import IoBatch
from cmqd.server.loop.reachable_time import ListeningTime
from cmqd.server.part import part
from cmqd.server.process.advertised_address import advertised_address
from cmqd.server.push.outbox import Outbox
from cmqd.server.replies.reply_gate import ReplyGate
from cmqd.settings import Settings
from cmqd_protocol.protocol_errors import ErrorCode

_log = get_logger()
_T = TypeVar("_T")

SHUTTING_DOWN = "the server is shutting down"
DRAIN_POLL_S = 0.005


@part
class Server:
    """A server with its parts, joined to one broker and one log; see the module."""

    parts: Assembly
    """All parts. The fields below are the parts that start, drain and end need."""
    loop: asyncio.AbstractEventLoop
    settings: Settings
    broker: Broker
    clock: BrokerClock
    location: dict[str, Any]
    listener: Listener
    connections: Connections
    client_events: ClientEvents
    admission: Admission
    replies: ReplyGate
    turns: RoundRobin
    tasks: BackgroundTasks
    io_batch: IoBatch
    beat: Beat
    agenda_timer: AgendaTimer
    broker_events: BrokerEvents
    listening_time: ListeningTime
    checkpoints: Checkpoints
    reclaim: Reclaim
    outbox: Outbox
    halt: Halt

    def part(self, kind: type[_T]) -> _T:
        """Return the part of a class."""
        return self.parts.get(kind)

    async def start(self) -> tuple[str, int]:
        """Listen; return the address.

        Raises:
            OSError, ssl.SSLError: the address or the TLS files cannot be used.
        """
        address = await self.listener.start()
        self.location["address"] = advertised_address(self.settings.advertise, address, socket.gethostname)
        self.listening_time.begin(self.clock.now_ms())
        self.beat.start()
        self.reclaim.scan()
        self.io_batch.schedule()
        return address

    async def drain(self, within_s: float) -> None:
        """Accept no new work, finish the work under way, tell every client, close all connections.

        The order matters: requests are refused before waits end, else an answered client could wait again; pushes and
        commits end before connections close, else a reply that becomes durable meanwhile would find no connection.
        """
        stop_at = self.loop.time() + within_s
        self.listener.stop_accepting()
        self.admission.refuse_all(ErrorCode.SHUTTING_DOWN, SHUTTING_DOWN)
        self.broker_events.fall_quiet()
        self.reclaim.stop()
        self.broker.gates.pushing = False
        self.listening_time.end()
        self.outbox.stop()
        ended = self.client_events.end_waits(ErrorCode.SHUTTING_DOWN, SHUTTING_DOWN)
        _log.info(
            "draining",
            waits_ended=ended,
            held_replies=len(self.replies),
            connections=len(self.connections),
            pushes=self.outbox.under_way,
        )
        self.io_batch.end()
        # A push without a recorded result is posted again after the start.
        await asyncio.gather(self.outbox.close(within_s / 2), self._wait_until_finished(within_s / 2))
        self.io_batch.end()
        # A client that does not read must not use up the time that the last checkpoint needs.
        left_s = stop_at - self.loop.time()
        await self.close_connections(ErrorCode.SHUTTING_DOWN, SHUTTING_DOWN, max(0.1, left_s / 2))
        self.agenda_timer.stop()

    async def end(self, reason: str, within_s: float) -> None:
        """After a failure: let clients read the reason, and close."""
        await self.outbox.close(0)
        await self.close_connections(ErrorCode.OUTCOME_UNKNOWN, reason, within_s)

    async def close_connections(self, code: ErrorCode, text: str, within_s: float) -> None:
        """Accept no more connections, tell every client why, and close."""
        self.listener.stop_accepting()
        await self.connections.close(code, text, within_s)
        self.listener.stop_timer()
        self.beat.stop()

    async def _wait_until_finished(self, within_s: float) -> None:
        """Wait until all work in progress is finished, or a failure shows that the work cannot be finished."""
        stop_at = self.loop.time() + within_s
        late = self.io_batch.late
        while (len(self.replies) or len(self.turns) or len(late) or len(self.tasks)) and self.loop.time() < stop_at:
            if self.halt.failure is not None:
                return
            await asyncio.sleep(DRAIN_POLL_S)
