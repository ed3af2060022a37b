"""The load's own short cuts against the real codec."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cmqd_load.limits import MIN_BODY
from cmqd_load.wire import (
    ALL_ACKNOWLEDGED,
    MARK,
    STAMP,
    HandlesTemplate,
    LoadConnection,
    SendTemplate,
    decode_deliveries,
    decode_handles,
    random_body,
    receive_frame,
    stamp_of,
)
from cmqd_protocol.messages import (
    DeleteMessages,
    HandleFailure,
    MessagesReceived,
    MessagesSent,
    ReceiveMessages,
    SendMessages,
    encoder,
    request_decoder,
)
from cmqd_types.messages import ReceivedMessage
from support.protocol.plain_msgpack import unpack


def payload_of(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


class FakeTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def a_connection() -> tuple[LoadConnection, list[tuple[bytes, int]]]:
    connection = LoadConnection(FakeTransport(), 30_000)  # pyright: ignore[reportArgumentType]
    replies: list[tuple[bytes, int]] = []
    connection.on_reply = lambda payload, opcode: replies.append((payload, opcode))
    return connection, replies


@given(st.integers(1, 40), st.integers(16, 400), st.integers(0, 2**64 - 1), st.integers(1, 127))
def test_a_send_template_is_the_encoded_send_with_its_time_in_every_body(
    batch: int, size: int, stamp: int, request_id: int
):
    message = request_decoder.decode(payload_of(SendTemplate("queue", batch=batch, size=size).at(stamp, request_id)))

    assert isinstance(message, SendMessages)
    assert (message.request_id, message.queue, len(message.bodies)) == (request_id, "queue", batch)
    assert {len(body) for body in message.bodies} == {size}
    assert {stamp_of(body) for body in message.bodies} == {stamp}


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=256), st.integers(1, 127))
def test_a_delete_template_is_the_encoded_delete(handles: list[int], request_id: int):
    frame = HandlesTemplate(DeleteMessages(1, "a-queue", [])).of(handles, request_id)

    payload = payload_of(frame)
    assert request_decoder.decode(payload) == DeleteMessages(request_id, "a-queue", handles)
    # The empty fields at the end are left out.
    assert unpack(payload) == [18, request_id, "a-queue", handles]


def test_a_receive_frame_is_the_encoded_receive():
    frame = receive_frame("q", max_messages=16, wait_ms=20_000, request_id=5)

    assert request_decoder.decode(payload_of(frame)) == ReceiveMessages(5, "q", 16, 20_000)


def received(stamps: list[int]) -> MessagesReceived:
    messages = [
        ReceivedMessage(1_000 + index, 2**63 + index, random_body(64, stamp), 77, 78, 79, 1, {"a": "b"})
        for index, stamp in enumerate(stamps)
    ]
    return MessagesReceived(1, messages)


def test_of_a_receive_only_handles_and_the_first_time_are_read():
    payload = encoder.encode(received([123, 456]))

    assert [message.receipt_handle for message in decode_handles(payload).messages] == [2**63, 2**63 + 1]
    assert stamp_of(payload) == 123


def test_deliveries_carry_body_and_enqueue_time():
    (delivered,) = decode_deliveries(encoder.encode(received([9]))).messages

    assert (stamp_of(delivered.body), delivered.enqueue_ms) == (9, 77)


def test_an_empty_receive_has_no_time():
    assert stamp_of(encoder.encode(MessagesReceived(1, []))) is None


def test_the_message_of_another_program_may_end_within_the_time():
    body = random_body(16, stamp=5)

    assert [stamp_of(body[:size]) for size in range(17)] == [*[None] * 16, 5]


@given(st.data())
def test_replies_are_cut_from_the_stream_however_it_is_split(data: st.DataObject):
    payloads = [encoder.encode(MessagesSent(request_id, [request_id])) for request_id in range(1, 6)]
    stream = b"".join(len(payload).to_bytes(4, "big") + payload + b"\0\0\0\0" for payload in payloads)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=10)))
    connection, replies = a_connection()

    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        connection.data_received(stream[start:stop])

    assert [payload for payload, _ in replies] == payloads
    assert {opcode for _, opcode in replies} == {193}
    assert [payload[3] for payload, _ in replies] == [1, 2, 3, 4, 5]


def test_a_lost_connection_is_told_unless_it_was_dropped():
    connection, _ = a_connection()
    errors: list[BaseException] = []
    connection.on_lost = errors.append

    connection.connection_lost(None)
    connection.on_lost = None
    connection.connection_lost(None)

    assert len(errors) == 1


def test_the_smallest_body_is_a_mark_and_a_time():
    assert len(MARK) + STAMP.size == MIN_BODY == len(random_body(MIN_BODY))


def test_the_decoders_skip_fields_that_later_versions_append():
    payload = msgspec.msgpack.encode([194, 1, [[5, 6, random_body(16), 7, 8, 9, 1, None, "new"]], "newer"])

    assert decode_handles(payload).messages[0].receipt_handle == 6


def test_a_receive_with_deletes_is_that_of_the_codec():
    template = HandlesTemplate(ReceiveMessages(1, "q", 4, 5_000, None, []))

    for handles in ([7], [2**64 - 1, 0], list(range(20))):
        request = request_decoder.decode(payload_of(template.of(handles, 9)))
        assert request == ReceiveMessages(9, "q", 4, 5_000, None, handles)


def test_the_end_of_a_reply_tells_that_all_deletes_are_done():
    failed = HandleFailure(7, 402, "not valid")

    assert encoder.encode(MessagesReceived(1, [], [], None)).endswith(ALL_ACKNOWLEDGED)
    assert not encoder.encode(MessagesReceived(1, [], None, None)).endswith(ALL_ACKNOWLEDGED)
    assert not encoder.encode(MessagesReceived(1, [], [failed], None)).endswith(ALL_ACKNOWLEDGED)
