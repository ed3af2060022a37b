"""The rules of messages: sent, received, settled, looked at."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.judge import MARKS, delays, has_queues, sizes, timeouts, waits, which
from model.queues import QueueRules

from cmqd.core.domain_errors import (
    BacklogFull,
    BatchTooLarge,
    InvalidArgument,
    SequenceTooOld,
    TooManyInFlight,
    TooManyRemembered,
)
from cmqd.core.outcome import WAITING, HandlesDone, Outcome, ReceivedAfterDeletes
from cmqd_segment.records import (
    VisibilityChanged,
    unpack_runs,
)
from support.core import alone
from support.core.naive_broker import (
    STEP_GRAIN_MS,
    NaiveMessage,
    NaivePeek,
    NaiveQueue,
    NaiveReceive,
    State,
)


class MessageRules(QueueRules):
    @precondition(has_queues)
    @rule(
        number=which,
        batch=st.lists(st.tuples(sizes, st.integers(0, 3), delays), min_size=1, max_size=8),
        delay=st.sampled_from(["none", "none", "none", "one", "each"]),
        session=st.sampled_from([0, 0, 1, 2, 3]),
        sequence=st.integers(1, 8),
    )
    def send(self, number: int, batch: list[tuple[int, int, int]], delay: str, session: int, sequence: int) -> None:
        queue = self.pick(number)
        sent = [b"%d" % (queue.next_position % 10) * size for size, _, _ in batch]
        marks = [MARKS[mark] for _, mark, _ in batch]
        delay_ms: int | list[int] | None = None
        each = [queue.attributes["delay_ms"]] * len(batch)
        if delay == "one":
            delay_ms = batch[0][2]
            each = [delay_ms] * len(batch)
        elif delay == "each":
            delay_ms = each = [one for _, _, one in batch]
        stored = self.sessions.find(queue.account, session, sequence) if session else "new"
        quiet = self.is_quiet()
        maybe_forgotten = session != 0 and self.sessions.may_be_forgotten(queue.account, session, self.now_ms)
        is_full = session != 0 and self.sessions.is_full_for(queue.account, session, self.now_ms)
        try:
            outcome = alone.send(
                self.broker, queue.account, queue.name, sent, marks, delay_ms, session, sequence, self.now_ms
            )
        except BacklogFull:
            assert len(queue.messages) + len(batch) > queue.attributes["max_backlog"]
            return
        except BatchTooLarge:
            assert len(batch) > 1
            return
        except InvalidArgument:
            # A longer delay than the retention is refused, and a repeat is not: its messages are stored.
            assert max(each) >= queue.attributes["retention_ms"]
            assert stored == "new" or maybe_forgotten
            return
        except SequenceTooOld:
            assert stored == "too old"
            return
        except TooManyRemembered:
            assert is_full
            return
        finally:
            # A refused send is a use, too: the queue has a producer.
            queue.use(self.now_ms)
        ids = list(outcome.reply)
        if not outcome.records:
            assert ids == stored, "a repeat got another answer"
            return
        assert max(each) < queue.attributes["retention_ms"], "a message that expires before its delay ends"
        assert not is_full, "an account got one more session than its share"
        assert stored == "new" or maybe_forgotten, "stored twice, or though too old"
        assert len(ids) == len(batch)
        assert not set(ids) & self.message_ids, "a message id was used twice"
        assert len(queue.messages) + len(batch) <= queue.attributes["max_backlog"]
        self.message_ids.update(ids)
        queue.send(ids, sent, marks, each, self.now_ms)
        if not quiet:
            # The number of free places for delayed messages depends on the ticks so far: copy the broker.
            overflow = self.broker.queues[queue.queue_id].index.delays.overflow
            for message in (queue.by_id[message_id] for message_id in ids):
                if message.visible_ms:
                    message.state = State.OVERFLOW if message.position in overflow else State.DELAYED
        if session:
            self.sessions.note(queue.account, session, sequence, ids, self.now_ms)
        self.done(outcome, ids[0])
        assert self.went_out == self.delivered

    @precondition(has_queues)
    @rule(number=which, most=st.integers(1, 8), wait=waits, timeout=timeouts)
    def receive(self, number: int, most: int, wait: int | None, timeout: int | None) -> None:
        queue = self.pick(number)
        self.waiter_id += 1
        quiet = self.is_quiet()
        try:
            outcome = alone.receive(
                self.broker, queue.account, queue.name, self.waiter_id, most, wait, timeout, self.now_ms
            )
        except TooManyInFlight:
            assert queue.in_flight() >= self.limits.max_in_flight
            return
        assert not quiet or queue.in_flight() < self.limits.max_in_flight
        wait_ms = queue.attributes["polling_wait_ms"] if wait is None else wait
        timeout_ms = queue.attributes["visibility_timeout_ms"] if timeout is None else timeout
        receive = NaiveReceive(self.waiter_id, most, timeout_ms, self.now_ms + wait_ms, bool(wait_ms))
        moving = self.moving(queue)
        queue.use(self.now_ms, receive.deadline_ms)
        reply = self.done(outcome)
        if reply is WAITING:
            queue.line.append(receive)
            return
        assert not queue.line or not reply, "it overtook those in the line"
        if reply:
            went_out = queue.deliver(receive, reply, self.now_ms, moving)
            assert self.delivered == [(queue.queue_id, position) for position in went_out]
        else:
            assert not wait_ms
            assert {one.position for one in queue.active()} <= moving

    @precondition(has_queues)
    @rule(
        number=which,
        picks=st.lists(which, min_size=1, max_size=8),
        most=st.integers(1, 8),
        wait=waits,
        timeout=timeouts,
    )
    def receive_after_deletes(
        self, number: int, picks: list[int], most: int, wait: int | None, timeout: int | None
    ) -> None:
        queue = self.pick(number)
        handles = self.handles_of(queue, picks)
        self.waiter_id += 1
        request = alone.Receive(most, wait, timeout, handles)
        outcome = self.broker.receive_all(queue.account, queue.name, [request], [self.waiter_id], self.now_ms)
        (result,) = outcome.reply
        assert isinstance(result, ReceivedAfterDeletes)
        refused = [failure.receipt_handle for failure in result.deletes.failures]
        messages, failed = queue.settle(handles, refused, self.now_ms)
        assert refused == failed
        assert result.deletes.done == len(messages)
        for failure in result.deletes.failures:
            self.check_gone(queue, failure.receipt_handle, failure.gone)
        queue.delete(messages, self.now_ms)
        queue.use(self.now_ms)
        moving = self.moving(queue)
        self.done(outcome)
        reply = result.reply
        if isinstance(reply, TooManyInFlight):
            assert queue.in_flight() >= self.limits.max_in_flight, "the limit was judged before the deletes"
            assert self.went_out == self.delivered
            return
        wait_ms = queue.attributes["polling_wait_ms"] if wait is None else wait
        timeout_ms = queue.attributes["visibility_timeout_ms"] if timeout is None else timeout
        receive = NaiveReceive(self.waiter_id, most, timeout_ms, self.now_ms + wait_ms, bool(wait_ms))
        queue.use(self.now_ms, receive.deadline_ms)
        if reply is WAITING:
            assert self.went_out == self.delivered
            queue.line.append(receive)
            return
        assert isinstance(reply, list)
        assert not queue.line or not reply, "it overtook those in the line"
        if reply:
            went_out = queue.deliver(receive, reply, self.now_ms, moving)
            own = [(queue.queue_id, position) for position in went_out]
            assert self.delivered == self.went_out + own, "the line is served first"
        else:
            assert self.went_out == self.delivered
            assert not wait_ms
            assert {one.position for one in queue.active()} <= moving

    @precondition(has_queues)
    @rule(number=which, most=st.integers(1, 8))
    def receive_now(self, number: int, most: int) -> None:
        self.receive(number, most, 0, None)

    @rule(pick=which)
    def cancel(self, pick: int) -> None:
        waiting = [(queue, one) for queue in self.queues for one in queue.line]
        asked = sorted(self.peeks)
        if pick % 4 == 0 and asked:
            waiter_id = asked[pick // 4 % len(asked)]
            del self.peeks[waiter_id]
            assert self.broker.cancel_receive(waiter_id)
        elif waiting:
            queue, receive = waiting[pick // 4 % len(waiting)]
            queue.line.remove(receive)
            assert self.broker.cancel_receive(receive.waiter_id)
        else:
            assert not self.broker.cancel_receive(0)

    def settled(self, queue: NaiveQueue, handles: list[int], outcome: Outcome[HandlesDone]) -> list[NaiveMessage]:
        refused = [failure.receipt_handle for failure in outcome.reply.failures]
        messages, failed = queue.settle(handles, refused, self.now_ms)
        queue.use(self.now_ms)
        assert refused == failed
        for failure in outcome.reply.failures:
            self.check_gone(queue, failure.receipt_handle, failure.gone)
        assert bool(outcome.records) == bool(messages), "handles that are not valid change nothing"
        return messages

    @precondition(has_queues)
    @rule(number=which, picks=st.lists(which, min_size=1, max_size=8))
    def delete(self, number: int, picks: list[int]) -> None:
        queue = self.pick(number)
        handles = self.handles_of(queue, picks)
        outcome = alone.delete(self.broker, queue.account, queue.name, handles, self.now_ms)
        queue.delete(self.settled(queue, handles, outcome), self.now_ms)
        self.done(outcome)
        assert self.went_out == self.delivered

    @precondition(has_queues)
    @rule(number=which, picks=st.lists(which, min_size=1, max_size=8), counted=st.booleans())
    def release(self, number: int, picks: list[int], counted: bool) -> None:
        queue = self.pick(number)
        handles = self.handles_of(queue, picks)
        outcome = self.broker.release(queue.account, queue.name, handles, counted, self.now_ms)
        messages = self.settled(queue, handles, outcome)
        queue.release(messages, counted)
        for message in messages if counted else []:
            self.note_back(queue, message)
        self.done(outcome)
        assert self.went_out == self.delivered

    @precondition(has_queues)
    @rule(
        number=which,
        picks=st.lists(which, min_size=1, max_size=8),
        timeout_ms=st.sampled_from([0, 1, 500, 1000, 30_000, 43_200_000]),
    )
    def change_visibility(self, number: int, picks: list[int], timeout_ms: int) -> None:
        queue = self.pick(number)
        handles = self.handles_of(queue, picks)
        outcome = self.broker.change_visibility(queue.account, queue.name, handles, timeout_ms, self.now_ms)
        messages = self.settled(queue, handles, outcome)
        if not timeout_ms:
            queue.release(messages, True)
            for message in messages:
                self.note_back(queue, message)
            self.done(outcome)
            return
        queue.hide(messages, timeout_ms, self.now_ms)
        deadlines = {
            lease: record.deadline_ms
            for record in outcome.records
            if isinstance(record, VisibilityChanged)
            for lease in unpack_runs(record.leases)
        }
        leases = self.broker.handles.leases(message.handle for message in messages)
        assert sorted(deadlines) == sorted(leases)
        for message, lease in zip(messages, leases, strict=True):
            chosen_ms = deadlines[lease]
            # The cut at retention is exact to a step of time.
            assert max(self.now_ms, message.deadline_ms - STEP_GRAIN_MS) <= chosen_ms <= message.deadline_ms
            message.deadline_ms = chosen_ms
        assert not messages or outcome.reply.next_visible_ms == min(deadlines.values())
        self.done(outcome)

    @precondition(has_queues)
    @rule(number=which, start=which, most=st.integers(1, 8))
    def peek(self, number: int, start: int, most: int) -> None:
        queue = self.pick(number)
        start = start % (queue.next_position + 2)
        self.waiter_id += 1
        peek = NaivePeek(queue, start, most, queue.next_position)
        outcome = self.broker.peek(queue.account, queue.name, self.waiter_id, start, most, self.now_ms)
        assert not outcome.records
        peek.then = queue.to_show(peek, self.now_ms)
        reply = self.done(outcome)
        if reply is WAITING:
            self.peeks[self.waiter_id] = peek
        else:
            queue.check_peek(peek, reply, self.unreadable(queue), self.now_ms)
