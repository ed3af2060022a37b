# Invariant: whatever bytes arrive, the reader refuses them as malformed or reads them without a change of meaning, and
# the gateway answers with the number of the call or ends the connection. No answered message is lost.
"""Mutations of recorded frames of CMQ's TCP protocol: the reader alone, guided by its coverage, and a gateway.

In ``make test`` a few mutations of a fixed seed. ``make test-all PARTS=fuzz`` takes CMQD_FUZZ_SECONDS for each test,
and a seed of its own, which is printed; CMQD_FUZZ_SEED repeats it.
"""

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncGenerator

import pytest
import structlog

from cmqd_client.messages.message_ids import id_number
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.commands import COMMANDS, NoEnvelope, read_body, read_envelope
from cmqd_gateway.cmq.tcp.frames import FrameError, FrameReader, to_frame
from cmqd_gateway.cmq.tcp.proto2 import Malformed
from support.gateway.gateway_rig import GatewayRig
from support.gateway.tcp_frames import REQUESTS
from support.gateway.tcp_program import TcpProgram
from support.mutations import SECONDS, lines_of, mutated, rounds

FEW = {"reader": 1_500, "gateway": 40}
"""Rounds of a test without a time."""
READER = frozenset(str(sys.modules[kind.__module__].__file__) for kind in (FrameReader, Malformed, NoEnvelope))
QUIET = 100
"""Looks at a gateway that has nothing to read or to answer, after which the last request was swallowed."""
LONGEST_CPU_SECONDS = 1.0
"""For a frame of 4 MiB on a slow machine."""
EDGES = (
    *(b"\0", b"\x80", b"\xff", b"\x7f", b"\xff" * 9 + b"\x01", b"\x80" * 11),
    *(b"\x0b", b"\x0c", b"\xd2\x01", b"\xc2\x0c"),
)
"""Bytes that end or stretch numbers, tags of groups, and tags of bodies."""


def read_all(stream: bytes, cut: int) -> None:
    """Read a stream in two pieces, and check the messages that it has."""
    reader = FrameReader(4 << 20)
    for piece in (stream[:cut], stream[cut:]):
        reader.feed(piece)
        try:
            while (payload := reader.next_payload()) is not None:
                check(payload)
        except FrameError:
            return


def check(payload: bytes) -> None:
    """Read a payload; what is read is written and read again without a change."""
    refusal = ""
    try:
        envelope = read_envelope(payload)
        command = COMMANDS.get(envelope.cmd)
        if command is not None:
            values = read_body(envelope, command)
            assert command.request.decode(command.request.encode(values)) == values
    except Malformed as error:
        refusal = str(error)
    assert len(refusal) < 200, refusal[:300]


def test_the_reader_reads_any_bytes_or_refuses_them() -> None:
    corpus = [to_frame(bytes.fromhex(text)) for text in REQUESTS.values()]
    seen: set[tuple[str, int]] = set()
    longest = 0.0
    for chance in rounds("reader", FEW["reader"]):
        stream = mutated(chance, chance.choice(corpus), corpus, EDGES)
        if chance.random() < 0.7 and len(stream) >= 6:
            # The length fits: otherwise most streams would end at their first head.
            stream = to_frame(stream[6:])
        cut = chance.randrange(len(stream) + 1)
        began = time.thread_time()
        try:
            lines = lines_of(READER, lambda stream=stream, cut=cut: read_all(stream, cut))
        except BaseException as error:
            error.add_note(f"stream: {stream[:2_000].hex()}, cut at {cut}")
            raise
        took = time.thread_time() - began
        longest = max(longest, took)
        assert not SECONDS or took < LONGEST_CPU_SECONDS, (took, stream[:2_000].hex())
        if not lines <= seen and len(stream) < 65_536:
            seen |= lines
            corpus.append(stream)
    print(f"corpus: {len(corpus)}, transitions: {len(seen)}, longest: {longest:.2f} s")
    assert len(corpus) > len(REQUESTS)


# ---------------------------------------------------------------------- a gateway


@pytest.fixture
async def rig(caplog: pytest.LogCaptureFixture) -> AsyncGenerator[GatewayRig]:
    structlog.reset_defaults()
    async with GatewayRig(listen_cmq_tcp="127.0.0.1:0") as rig:
        await rig.server.admin.create_queue("paid", transactional=True)
        yield rig


def converse(chance: random.Random, program: TcpProgram, others: list[bytes]) -> None:
    """Write requests, of which some are mutated."""
    for number in range(2, chance.randrange(4, 14)):
        name = chance.choice(["send", "batch send", "half message", "batch receive", "delete", "publish", "decide"])
        frame = to_frame(bytes([8, number]) + bytes.fromhex(REQUESTS[name])[2:])
        if chance.random() < 0.5:
            frame = mutated(chance, frame, others, EDGES)
            if chance.random() < 0.8 and len(frame) >= 6:
                frame = to_frame(frame[6:])
        program.write(frame)


async def stored_ids(program: TcpProgram, last: int) -> set[int]:
    """Return the ids in the answers up to the last answer, or to the end of the connection."""
    stored: set[int] = set()
    with contextlib.suppress(EOFError):
        while True:
            reply = await program.next()
            if reply.cmd in (commands.SEND, commands.BATCH_SEND) and not reply.result:
                stored.update(reply.ids)
            if reply.seqno == last:
                break
    return stored


async def test_a_gateway_answers_or_ends_and_loses_no_answered_message(
    rig: GatewayRig, caplog: pytest.LogCaptureFixture
) -> None:
    others = [to_frame(bytes.fromhex(text)) for text in REQUESTS.values()]
    queue = rig.server.admin.queue("orders")
    connections = rig.gateway.cmq_tcp
    assert connections is not None
    async with TcpProgram(rig) as other:
        await other.log_in()
        for chance in rounds("gateway", FEW["gateway"]):
            async with TcpProgram(rig) as program:
                assert (await program.log_in()).result == 0
                converse(chance, program, others)
                last = program.send(commands.SEND, queueName="orders", msgBody=b"last", seqno=1 << 40)
                reading = asyncio.create_task(stored_ids(program, last))
                quiet = 0
                while not reading.done():
                    await asyncio.sleep(0.001)
                    quiet = (
                        0 if any(one.is_answering or one.frame_since is not None for one in connections) else quiet + 1
                    )
                    if any(one.frame_since is not None and not one.is_answering for one in connections):
                        # A cut frame has swallowed the next ones: the gateway waits for its rest. The other connection
                        # is heard before each step of the clock, as no connection may be silent for long.
                        assert (await other.ask(commands.SEND, queueName="orders", msgBody=b"other")).result == 0
                        rig.clock.advance(rig.settings.slow_client_seconds)
                        connections.check()
                    elif quiet == QUIET:
                        # A cut frame has ended with the last byte of the last request.
                        program.send(commands.SEND, queueName="orders", msgBody=b"last", seqno=last)
                        quiet = 0
                stored = await reading
            # Another connection is served whatever happened to the first.
            assert (await other.ask(commands.SEND, queueName="orders", msgBody=b"other")).result == 0
            await check_stored(rig, stored)
            # Ends are a few lines; no fault of the gateway is among them.
            names = {record.getMessage().partition(" ")[0] for record in caplog.records}
            assert names <= {"event='cmq_tcp_connection_ended'"}, caplog.text
            caplog.clear()
            await queue.clear()
    print({reason: count for reason, count in connections.ended.items() if count})


async def check_stored(rig: GatewayRig, stored: set[int]) -> None:
    """Check that each answered message is in one of the queues. No good request of a conversation deletes a message."""
    found: set[int] = set()
    for name in ("orders", "paid"):
        start: int | None = 0
        while start is not None:
            page = await rig.server.admin.queue(name).peek(100, start=start)
            found |= {id_number(message.id) for message in page}
            start = page.next_start
    assert stored <= found, stored - found
