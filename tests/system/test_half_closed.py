"""A client that shuts its writing side: its earlier requests are carried out, and the connection ends."""

from pathlib import Path

import pytest

from cmqd_protocol import messages as wire
from support.client.raw_client import RawClient
from support.processes.running_broker import RunningBroker

pytestmark = pytest.mark.system

SENDS = 60
BODY_BYTES = 100_000
"""Far more than a single read, so that the broker defers the input and reads in turns."""


def test_requests_before_the_end_of_the_stream_are_carried_out(tmp_path: Path) -> None:
    with RunningBroker(tmp_path) as broker, RawClient(broker.url) as client:
        client.ask(wire.QueueInfo, wire.CreateQueue, "orders", {"max_message_bytes": 1_048_576})
        with RawClient(broker.url) as leaving:
            for number in range(SENDS):
                leaving.begin(wire.SendMessages, "orders", [b"%d" % number + bytes(BODY_BYTES)])
            leaving.shut_writing_side()
            leaving.read_to_end()
        assert all(isinstance(reply, wire.MessagesSent) for reply in leaving.replies.values())

        bodies: list[bytes] = []
        while len(bodies) < SENDS:
            reply = client.ask(wire.MessagesReceived, wire.ReceiveMessages, "orders", 10, 10_000)
            assert reply.messages, f"only {len(bodies)} of {SENDS} were carried out"
            bodies += [message.body for message in reply.messages]

    assert [int(body.rstrip(b"\0")) for body in bodies] == list(range(SENDS))
