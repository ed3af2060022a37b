"""The handlers of queues: their attributes, rewinding, redriving."""

from msgspec.structs import asdict, replace

from cmqd.server.handlers.outcomes import Client, Outcomes
from cmqd_protocol import messages as wire
from cmqd_types.queues import QueueInfo, RedriveStatus, Rewound


class QueueHandlers(Outcomes):
    """Queues; see the module."""

    def _create_queue(self, client: Client, request: wire.CreateQueue) -> None:
        self._accounts.check_exists(client.account)
        now_ms = self._now_ms()
        outcome = self._broker.create_queue(client.account, request.queue, request.attributes, now_ms)
        self._answer_queue(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _ensure_queue(self, client: Client, request: wire.EnsureQueue) -> None:
        self._accounts.check_exists(client.account)
        now_ms = self._now_ms()
        outcome = self._broker.ensure_queue(client.account, request.queue, request.attributes, now_ms)
        self._answer_queue(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _list_queues(self, client: Client, request: wire.ListQueues) -> None:
        total, queues = self._broker.list_queues(client.account, request.search, request.offset, request.limit)
        self._gate.hold(self._log.last_lsn, client, wire.QueueList(request.request_id, total, queues))

    def _get_queue_attributes(self, client: Client, request: wire.GetQueueAttributes) -> None:
        info = self._broker.queue_info(client.account, request.queue)
        self._answer_queue(client, request.request_id, info, self._log.last_lsn)

    def _set_queue_attributes(self, client: Client, request: wire.SetQueueAttributes) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.set_queue_attributes(client.account, request.queue, request.attributes, now_ms)
        self._answer_queue(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _delete_queue(self, client: Client, request: wire.DeleteQueue) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.delete_queue(client.account, request.queue, now_ms)
        self.checkers.forget_queue(client.account, request.queue)
        self._gate.hold(self._settle(outcome, now_ms), client, wire.Done(request.request_id))

    def _clear_queue(self, client: Client, request: wire.ClearQueue) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.clear_queue(client.account, request.queue, now_ms)
        self._gate.hold(self._settle(outcome, now_ms), client, wire.Done(request.request_id))

    def _rewind_queue(self, client: Client, request: wire.RewindQueue) -> None:
        now_ms = self._now_ms()
        waiter_id = self._waiting_requests.new_id()
        # Counted here: the client's clock may differ from broker time, in which messages have their times.
        time_ms = request.time_ms if request.ago_ms is None else max(0, now_ms - request.ago_ms)
        outcome = self._broker.rewind(client.account, request.queue, waiter_id, time_ms, request.strict, now_ms)
        self._answer_or_wait(client, request, waiter_id, outcome, now_ms)

    def _answer_queue(self, client: Client, request_id: int, info: QueueInfo, lsn: int) -> None:
        info = replace(info, facts=info.facts | self.location)
        reply = wire.QueueInfo(request_id, **asdict(info))
        self._gate.hold(lsn, client, reply)

    def _answer_rewound(self, client: Client, request: wire.RewindQueue, rewound: Rewound, lsn: int) -> None:
        self._gate.hold(lsn, client, wire.Rewound(request.request_id, **asdict(rewound)))

    def _list_dead_letter_sources(self, client: Client, request: wire.ListDeadLetterSources) -> None:
        sources = self._broker.dead_letter_sources(client.account, request.queue)
        self._gate.hold(self._log.last_lsn, client, wire.QueueList(request.request_id, len(sources), sources))

    def _start_redrive(self, client: Client, request: wire.StartRedrive) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.start_redrive(
            client.account, request.queue, request.target, request.max_per_second, now_ms
        )
        self._answer_redrive(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _cancel_redrive(self, client: Client, request: wire.CancelRedrive) -> None:
        now_ms = self._now_ms()
        outcome = self._broker.cancel_redrive(client.account, request.queue, now_ms)
        self._answer_redrive(client, request.request_id, outcome.reply, self._settle(outcome, now_ms))

    def _get_redrive(self, client: Client, request: wire.GetRedrive) -> None:
        status = self._broker.redrive_status(client.account, request.queue)
        self._answer_redrive(client, request.request_id, status, self._log.last_lsn)

    def _answer_redrive(self, client: Client, request_id: int, status: RedriveStatus, lsn: int) -> None:
        self._gate.hold(lsn, client, wire.RedriveStatus(request_id, **asdict(status)))
