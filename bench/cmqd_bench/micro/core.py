"""Every operation of the core on a queue in its usual state. Time is a number that is passed in."""

from cmqd.core.broker import Broker
from cmqd.core.limits import Limits
from cmqd.core.outcome import PageRead
from cmqd_bench.micro.measuring import Micro, Work
from cmqd_fold.receipts import ReceiptHandles
from cmqd_protocol import messages as wire
from cmqd_segment.records import StoredMessage, unpack_runs

ACCOUNT = "admin"
QUEUE = "micro"
BODY = bytes(256)
KEY = (0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x0F1E2D3C4B5A6978, 0x8796A5B4C3D2E1F0)
MESSAGES = 4096
START_MS = 1_700_000_000_000
LONG_MS = 600_000


def broker_with(messages: int = 0, *, window_bytes: int = 1 << 30) -> Broker:
    """Return a broker with a single queue of ``messages`` messages."""
    broker = Broker(handle_key=KEY, limits=Limits(window_bytes=window_bytes))
    broker.create_queue(ACCOUNT, QUEUE, {}, now_ms=START_MS)
    for _ in range(messages // 16):
        send(broker, 16)
    return broker


def send(broker: Broker, batch: int, delay_ms: int | list[int] | None = None) -> None:
    """Send a batch."""
    broker.send_all(ACCOUNT, QUEUE, [wire.SendMessages(1, QUEUE, [BODY] * batch, None, delay_ms)], now_ms=START_MS)


def receive(broker: Broker, batch: int, visibility_timeout_ms: int = LONG_MS) -> list[int]:
    """Receive a batch and return the receipt handles."""
    outcome = broker.receive_all(
        ACCOUNT, QUEUE, [wire.ReceiveMessages(1, QUEUE, batch, 0, visibility_timeout_ms)], [1], now_ms=START_MS
    )
    (messages,) = outcome.reply
    assert isinstance(messages, list)
    return [message.receipt_handle for message in messages]


def _send(batch: int) -> Work:
    broker = broker_with()
    bodies = [BODY] * batch

    def work() -> int:
        for _ in range(MESSAGES // batch):
            broker.send_all(ACCOUNT, QUEUE, [wire.SendMessages(1, QUEUE, bodies)], now_ms=START_MS)
        return MESSAGES

    return work


def _send_numbered() -> Work:
    broker = broker_with()
    bodies = [BODY]

    def work() -> int:
        for sequence in range(1, MESSAGES + 1):
            sends = [wire.SendMessages(1, QUEUE, bodies, session=77, sequence=sequence)]
            broker.send_all(ACCOUNT, QUEUE, sends, now_ms=START_MS)
        return MESSAGES

    return work


def _receive(batch: int) -> Work:
    broker = broker_with(MESSAGES)

    def work() -> int:
        for _ in range(MESSAGES // batch):
            broker.receive_all(
                ACCOUNT, QUEUE, [wire.ReceiveMessages(1, QUEUE, batch, 0, LONG_MS)], [1], now_ms=START_MS
            )
        return MESSAGES

    return work


def _receive_by_waiting(batch: int) -> Work:
    """Prepare the delivery of a message to a waiting receive: receive, park, send, wake."""
    broker = broker_with()
    bodies = [BODY] * batch

    def work() -> int:
        for waiter in range(MESSAGES // batch):
            broker.receive_all(
                ACCOUNT, QUEUE, [wire.ReceiveMessages(1, QUEUE, batch, 20_000, LONG_MS)], [waiter], now_ms=START_MS
            )
            broker.send_all(ACCOUNT, QUEUE, [wire.SendMessages(1, QUEUE, bodies)], now_ms=START_MS)
        return MESSAGES

    return work


def _delete(batch: int) -> Work:
    broker = broker_with(MESSAGES)
    held = [receive(broker, batch) for _ in range(MESSAGES // batch)]

    def work() -> int:
        for handles in held:
            broker.delete_all(ACCOUNT, QUEUE, [handles], now_ms=START_MS)
        return MESSAGES

    return work


def _send_together(clients: int) -> Work:
    """Prepare numbered sends of several clients, single messages, within the same I/O batch."""
    broker = broker_with()

    def work() -> int:
        for sequence in range(1, MESSAGES // clients + 1):
            sends = [
                wire.SendMessages(1, QUEUE, [BODY], session=client, sequence=sequence)
                for client in range(1, clients + 1)
            ]
            broker.send_all(ACCOUNT, QUEUE, sends, now_ms=START_MS)
        return MESSAGES

    return work


def _receive_together(clients: int) -> Work:
    broker = broker_with(MESSAGES)
    waiters = range(clients)
    receives = [wire.ReceiveMessages(1, QUEUE, 1, 0, LONG_MS)] * clients

    def work() -> int:
        for _ in range(MESSAGES // clients):
            broker.receive_all(ACCOUNT, QUEUE, receives, waiters, now_ms=START_MS)
        return MESSAGES

    return work


def _delete_together(clients: int) -> Work:
    broker = broker_with(MESSAGES)
    held = [[[handle] for handle in receive(broker, clients)] for _ in range(MESSAGES // clients)]

    def work() -> int:
        for handles in held:
            broker.delete_all(ACCOUNT, QUEUE, handles, now_ms=START_MS)
        return MESSAGES

    return work


def _change_visibility(batch: int) -> Work:
    broker = broker_with(MESSAGES)
    held = [receive(broker, batch) for _ in range(MESSAGES // batch)]

    def work() -> int:
        for handles in held:
            broker.change_visibility(ACCOUNT, QUEUE, handles, 2 * LONG_MS, now_ms=START_MS)
        return MESSAGES

    return work


def _release() -> Work:
    broker = broker_with(MESSAGES)
    held = [receive(broker, 16) for _ in range(MESSAGES // 16)]

    def work() -> int:
        for handles in held:
            broker.release(ACCOUNT, QUEUE, handles, True, now_ms=START_MS)
        return MESSAGES

    return work


def tick_until_idle(broker: Broker, now_ms: int) -> None:
    """Do the work that is due at ``now_ms``, tick after tick."""
    while (due := broker.next_deadline_ms()) is not None and due <= now_ms:
        broker.tick(now_ms)


def _tick_leases() -> Work:
    broker = broker_with(MESSAGES)
    while receive(broker, 16, 5_000):
        pass

    def work() -> int:
        tick_until_idle(broker, START_MS + 10_000)
        return MESSAGES

    return work


def _tick_delays() -> Work:
    broker = broker_with()
    for first in range(0, MESSAGES, 256):
        send(broker, 256, [1 + (first + offset) * 7919 % 5_000 for offset in range(256)])

    def work() -> int:
        tick_until_idle(broker, START_MS + 10_000)
        return MESSAGES

    return work


def _tick_waits() -> Work:
    """Prepare the ends of 1,000 waits in a bucket with the leases of many deleted messages."""
    broker = broker_with(32 * MESSAGES)
    for _ in range(32 * MESSAGES // 256):
        broker.delete_all(ACCOUNT, QUEUE, [receive(broker, 256, 10_000)], now_ms=START_MS)
    send(broker, 16)
    receive(broker, 16)
    requests = [wire.ReceiveMessages(1, QUEUE, 16, 9_950, None)] * 1000
    broker.receive_all(ACCOUNT, QUEUE, requests, range(1000), now_ms=START_MS)

    def work() -> int:
        tick_until_idle(broker, START_MS + 9_950)
        return 1000

    return work


def _tick_idle() -> Work:
    broker = broker_with(16)

    def work() -> int:
        for _ in range(2_000):
            broker.next_deadline_ms()
            broker.tick(START_MS)
        return 2_000

    return work


def _page_in() -> Work:
    """Prepare a queue with all bodies on disk: the cost in the core of arriving pages."""
    broker = broker_with(MESSAGES, window_bytes=0)

    def answer(read: PageRead) -> list[StoredMessage]:
        return [
            StoredMessage(position, position + 1, START_MS, BODY, None, 0) for position in unpack_runs(read.positions)
        ]

    first = broker.receive_all(
        ACCOUNT, QUEUE, [wire.ReceiveMessages(1, QUEUE, 16, 1_000, LONG_MS)], [1], now_ms=START_MS
    )
    reads = list(first.reads)
    pages = [(read.read_id, answer(read)) for read in reads]

    def work() -> int:
        for read_id, messages in pages:
            broker.pages_read(read_id, messages, [], now_ms=START_MS)
        return sum(len(messages) for _, messages in pages)

    return work


def _handles(batch: int) -> Work:
    cipher = ReceiptHandles(KEY)

    def work() -> int:
        for lease in range(0, MESSAGES, batch):
            cipher.handles(lease, batch)
        return MESSAGES

    return work


def _leases_of_handles() -> Work:
    cipher = ReceiptHandles(KEY)
    handles = cipher.handles(1, MESSAGES)

    def work() -> int:
        for handle in handles:
            cipher.lease(handle)
        return MESSAGES

    return work


def core_micros() -> list[Micro]:
    """Return the benchmarks of the operations of the core."""
    return [
        Micro("core: send by 1", lambda: _send(1)),
        Micro("core: send by 16", lambda: _send(16)),
        Micro("core: send numbered, by 1", _send_numbered),
        Micro("core: send numbered, by 1, 16 clients", lambda: _send_together(16)),
        Micro("core: receive by 1", lambda: _receive(1)),
        Micro("core: receive by 16", lambda: _receive(16)),
        Micro("core: receive by 1, 16 clients", lambda: _receive_together(16)),
        Micro("core: wait and send by 1", lambda: _receive_by_waiting(1)),
        Micro("core: wait and send by 16", lambda: _receive_by_waiting(16)),
        Micro("core: delete by 1", lambda: _delete(1)),
        Micro("core: delete by 16", lambda: _delete(16)),
        Micro("core: delete by 1, 16 clients", lambda: _delete_together(16)),
        Micro("core: change visibility by 1", lambda: _change_visibility(1)),
        Micro("core: change visibility by 16", lambda: _change_visibility(16)),
        Micro("core: release by 16", _release),
        Micro("core: tick, leases that end", _tick_leases),
        Micro("core: tick, delays that end", _tick_delays),
        Micro("core: tick, waits that end", _tick_waits, "wait"),
        Micro("core: tick, nothing due", _tick_idle, "tick"),
        Micro("core: pages arrive", _page_in),
        Micro("core: receipt handles of 16 leases", lambda: _handles(16), "handle"),
        Micro("core: lease of a receipt handle", _leases_of_handles, "handle"),
    ]
