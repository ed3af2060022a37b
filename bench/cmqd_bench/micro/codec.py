"""The codec: messages of the hot path, a whole read of pipelined frames, and a row of the log."""

from cmqd.storage.loop_side.row_builder import RowBuilder
from cmqd_bench.micro.measuring import Micro, Work, repeated
from cmqd_protocol.client_connection import ClientConnection
from cmqd_protocol.handshake import AccessKey
from cmqd_protocol.messages import (
    AnyReply,
    DeleteMessages,
    HandlesDone,
    MessagesReceived,
    MessagesSent,
    ReceiveMessages,
    Request,
    SendMessages,
    encoder,
    reply_decoder,
    request_decoder,
)
from cmqd_protocol.server_connection import ServerConnection
from cmqd_segment.records import MessagesDeleted as MessagesDeletedRecord
from cmqd_segment.records import MessagesReceived as MessagesReceivedRecord
from cmqd_segment.records import MessagesSent as MessagesSentRecord
from cmqd_segment.rows import encode_records
from cmqd_types.messages import ReceivedMessage

BODY = bytes(256)
NOW_MS = 1_700_000_000_000
HANDLE = 0x9E3779B97F4A7C15
CALLS = 4_000


def _received(count: int) -> list[ReceivedMessage]:
    return [
        ReceivedMessage(
            message_id=1_000_000 + offset,
            receipt_handle=HANDLE + offset,
            body=BODY,
            enqueue_ms=NOW_MS,
            first_receive_ms=NOW_MS,
            next_visible_ms=NOW_MS + 30_000,
            receive_count=1,
        )
        for offset in range(count)
    ]


def requests() -> dict[str, tuple[Request, int]]:
    """Return the requests of the hot path with their message counts."""
    return {
        "send of 1": (SendMessages(70_000, "queue", [BODY]), 1),
        "send of 1, numbered, with headers": (
            SendMessages(
                70_000,
                queue="queue",
                bodies=[BODY],
                headers=[{"kind": "order", "attempt": "1"}],
                delay_ms=None,
                session=1 << 60,
                sequence=7,
            ),
            1,
        ),
        "send of 16": (SendMessages(70_000, "queue", [BODY] * 16), 16),
        "receive": (ReceiveMessages(70_000, "queue", 16, 20_000), 1),
        "delete of 1": (DeleteMessages(70_000, "queue", [HANDLE]), 1),
        "delete of 16": (DeleteMessages(70_000, "queue", [HANDLE + offset for offset in range(16)]), 16),
    }


def replies() -> dict[str, tuple[AnyReply, int]]:
    """Return the replies of the hot path with their message counts."""
    return {
        "sent 1": (MessagesSent(70_000, [1_000_000]), 1),
        "sent 16": (MessagesSent(70_000, list(range(1_000_000, 1_000_016))), 16),
        "received 1": (MessagesReceived(70_000, _received(1)), 1),
        "received 16": (MessagesReceived(70_000, _received(16)), 16),
        "handles done": (HandlesDone(70_000, []), 1),
    }


def _connection_reads(frames: int) -> Work:
    """Prepare the server's work for a read with several pipelined sends: cut, decode, answer, join."""
    connection = opened_connection()
    payloads = [encoder.encode(SendMessages(request_id, "queue", [BODY])) for request_id in range(1, frames + 1)]
    data = b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)

    def work() -> int:
        for _ in range(CALLS // frames):
            connection.receive_data(data, 0)
            for event in connection.events():
                assert isinstance(event, SendMessages)
                connection.send(MessagesSent(event.request_id, [1_000_000]))
            connection.data_to_send(0)
        return CALLS // frames * frames

    return work


def opened_connection() -> ServerConnection:
    """Return the server's side of an authenticated connection."""
    key = "k" * 40
    server = ServerConnection(
        nonce=b"s" * 32,
        find_key=lambda _: AccessKey("admin", key),
        region="local",
        connection_id=1,
        now_ms=0,
        heartbeat_ms=0,
    )
    client = ClientConnection(secret_id="AKID", secret_key=key, nonce=b"c" * 32, now_ms=0, heartbeat_ms=0)
    while not (server.is_open and client.is_open):
        server.receive_data(b"".join(client.data_to_send(0)), 0)
        client.receive_data(b"".join(server.data_to_send(0)), 0)
        server.events()
    return server


def _row() -> Work:
    """Prepare a row of the log as a busy loop fills a row: 16 sends of 16, their receives and deletes."""
    sends = [MessagesSentRecord(1, first, 1_000_000 + first, NOW_MS, [len(BODY)] * 16) for first in range(0, 256, 16)]
    others = [
        record
        for first in range(0, 256, 16)
        for record in (
            MessagesReceivedRecord(1, [first, 16], 5_000 + first, NOW_MS, NOW_MS + 30_000),
            MessagesDeletedRecord(1, [first, 16], [5_000 + first, 16], NOW_MS),
        )
    ]
    bodies = [BODY] * 16

    def work() -> int:
        builder = RowBuilder()
        for _ in range(CALLS // 256):
            for index, record in enumerate(sends):
                builder.add([record], encode_records([record]), bodies, 16 * len(BODY), NOW_MS)
                pair = others[2 * index : 2 * index + 2]
                builder.add(pair, encode_records(pair), (), 0, NOW_MS)
            builder.close()
        return CALLS // 256 * 256

    return work


def codec_micros() -> list[Micro]:
    """Return the benchmarks of the codec: each message of the hot path in both directions, then reads and rows."""
    micros: list[Micro] = []
    for name, (message, items) in requests().items():
        payload = encoder.encode(message)
        micros.append(
            Micro(
                f"codec: decode request {name}",
                lambda payload=payload, items=items: repeated(lambda: request_decoder.decode(payload), CALLS, items),
            )
        )
    for name, (message, items) in replies().items():
        payload = encoder.encode(message)
        micros.append(
            Micro(
                f"codec: encode reply {name}",
                lambda message=message, items=items: repeated(lambda: encoder.encode(message), CALLS, items),
            )
        )
        micros.append(
            Micro(
                f"codec: decode reply {name} (client)",
                lambda payload=payload, items=items: repeated(lambda: reply_decoder.decode(payload), CALLS, items),
            )
        )
    micros.append(Micro("connection: read, answer, write 1 per wake-up", lambda: _connection_reads(1)))
    micros.append(Micro("connection: read, answer, write 16 per wake-up", lambda: _connection_reads(16)))
    micros.append(Micro("log: build and encode rows", _row))
    return micros
