"""A standby refuses connections, names the leader, follows the log, and leads when the leader has ended."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

import cmqd_client
from cmqd.exit_codes import ExitCode
from cmqd.server.loop.clock import BrokerClock, wall_ms
from cmqd.server.process import daemon
from cmqd.server.redundancy import leadership
from cmqd.server.redundancy.engine_accounts import addresses_in
from cmqd.server.server import Server
from cmqd.storage.storage_errors import LeadLost
from cmqd_client.errors import CmqError, OutcomeUnknown
from support.engine.replicas import Replicas
from support.eventually import eventually
from support.server.daemons import DaemonOverEngine, url_of
from support.tls.certificates import make_certificate, trusting_context


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    await made.end()


async def test_a_broker_leads_and_its_standby_takes_over(replicas: Replicas, tmp_path: Path) -> None:
    leader, standby = DaemonOverEngine(replicas, tmp_path / "a"), DaemonOverEngine(replicas, tmp_path / "b")
    leader.begin()
    await leader.led()
    async with cmqd_client.connect(leader.url) as client:
        queue = await client.create_queue("orders")
        await queue.send(b"first")
        (leased,) = await queue.receive(visibility_timeout=3600)
        await queue.send(b"second")
    standby.begin()
    await eventually(lambda: standby.replica.log.accounts is not None)

    assert await leader.end() is ExitCode.OK
    await standby.led()

    async with cmqd_client.connect(standby.url) as client:
        queue = client.queue("orders")
        await queue.delete(leased.receipt_handle)
        (message,) = await queue.receive()
        assert message.body == b"second"
        await message.delete()
        info = await queue.attributes()
        assert (info.active, info.in_flight) == (0, 0)
    assert standby.url.rpartition("@")[0] == leader.url.rpartition("@")[0], "the keys are those of the engine"
    assert await standby.end() is ExitCode.OK


async def test_both_brokers_of_a_pair_write_a_context_with_both_addresses(replicas: Replicas, tmp_path: Path) -> None:
    """The leader's first, into the file that they share: the second takeover leaves no second file."""
    shared = tmp_path / "admin.context.toml"
    a, b = (DaemonOverEngine(replicas, tmp_path / name, context_file=shared) for name in "ab")

    def addresses() -> list[str]:
        return url_of(shared).rpartition("@")[2].split(",")

    a.begin()
    await a.led()
    assert addresses() == [a.address]
    b.begin()
    await eventually(lambda: len(addresses()) == 2)
    of_b = addresses()[1]
    assert of_b == f"127.0.0.1:{b.port}"
    key = url_of(shared).rpartition("@")[0]

    assert await a.end() is ExitCode.OK
    await b.led()
    assert addresses() == [of_b, a.address], "a broker that is away now may lead tomorrow"
    c = DaemonOverEngine(replicas, tmp_path / "c", context_file=shared)
    c.begin()
    await eventually(lambda: f"127.0.0.1:{c.port}" in addresses())
    assert await b.end() is ExitCode.OK
    await c.led()

    # The machine may give the port of a broker that has ended to the next.
    assert addresses() == list(dict.fromkeys([c.address, of_b, a.address]))
    assert url_of(shared).rpartition("@")[0] == key
    assert list(tmp_path.glob("**/*.context.toml")) == [shared]
    assert await c.end() is ExitCode.OK


@pytest.mark.parametrize("skew_ms", [40_000, 2 * 3_600_000])
@pytest.mark.parametrize("has_followed", [True, False])
async def test_a_clock_that_is_ahead_ends_no_message_and_no_lease_at_a_takeover(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, skew_ms: int, has_followed: bool
) -> None:
    leader, standby = DaemonOverEngine(replicas, tmp_path / "a"), DaemonOverEngine(replicas, tmp_path / "b")
    leader.begin()
    await leader.led()
    if has_followed:
        standby.begin()
        await eventually(lambda: standby.replica.log.accounts is not None)
    async with cmqd_client.connect(leader.url) as client:
        queue = await client.create_queue("orders", retention=3600, visibility_timeout=30)
        for number in range(21):
            await queue.send(b"%d" % number)
        (leased,) = await queue.receive()
    assert await leader.end() is ExitCode.OK
    monkeypatch.setattr(daemon, "wall_ms", lambda: wall_ms() + skew_ms)
    monkeypatch.setattr(daemon, "BrokerClock", partial(BrokerClock, wall=lambda: wall_ms() + skew_ms))
    if not has_followed:
        standby.begin()

    await standby.led()

    async with cmqd_client.connect(standby.url) as client:
        queue = client.queue("orders")
        info = await queue.attributes()
        assert (info.active, info.in_flight) == (20, 1)
        await queue.delete(leased.receipt_handle)
        assert (await client.status())["clock_offset_ms"] == pytest.approx(skew_ms, abs=30_000)
    assert await standby.end() is ExitCode.OK


async def test_a_standby_refuses_connections_and_names_the_leader(replicas: Replicas, tmp_path: Path) -> None:
    leader, standby = DaemonOverEngine(replicas, tmp_path / "a"), DaemonOverEngine(replicas, tmp_path / "b")
    leader.begin()
    await leader.led()
    standby.begin()
    await eventually(lambda: standby.port and standby.replica.log.accounts is not None)
    reader, writer = await asyncio.open_connection("127.0.0.1", standby.port)

    writer.write(b"CMQD\x01\x00" + b"\x00" * 8)
    answer = await reader.read()

    assert leader.address.encode() in answer
    assert b"standby" in answer
    writer.close()
    # As a client sees it, before its key is looked at.
    assert await standby.end() is ExitCode.OK
    assert await leader.end() is ExitCode.OK


async def test_the_address_of_a_leader_is_known_before_it_listens(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is the first: standbys never refuse a client without a word on the leader that it could have found."""
    known: list[list[str]] = []
    start = Server.start

    async def observed(server: Server) -> tuple[str, int]:
        known.append(addresses_in(replicas.database.newest_primary().tables.accounts))
        return await start(server)

    monkeypatch.setattr(Server, "start", observed)
    leader = DaemonOverEngine(replicas, tmp_path / "a")
    leader.begin()
    await leader.led()

    assert known == [[leader.address]]
    assert await leader.end() is ExitCode.OK


async def test_a_leader_that_was_fenced_ends_with_an_exit_code_of_its_own(replicas: Replicas, tmp_path: Path) -> None:
    leader = DaemonOverEngine(replicas, tmp_path / "a")
    leader.begin()
    await leader.led()
    async with cmqd_client.connect(leader.url) as client:
        queue = await client.create_queue("orders")
        other = replicas.engine()
        await asyncio.to_thread(other.take)
        with pytest.raises(OutcomeUnknown):
            await queue.send(b"lost")
    assert leader.ended is not None

    assert await leader.ended is ExitCode.FENCED

    assert not any(row.messages for row in replicas.rows)
    other.close()


@pytest.mark.parametrize("change", ["checkpoint", "drop", "create_key", "disable_key", "create_account"])
async def test_a_stopped_leader_that_wakes_up_changes_nothing_in_the_engine(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Changes beside the rows, which no append of a row has refused before."""
    # It was stopped: it asks for no proof before the change.
    monkeypatch.setattr(leadership, "PROVE_EVERY_S", 3600.0)
    broker = DaemonOverEngine(replicas, tmp_path / "a")
    broker.begin()
    await broker.led()
    log, database = broker.replica.log, replicas.database
    async with cmqd_client.connect(broker.url, patience=0.5) as client:
        queue = await client.create_queue("orders")
        await queue.send(b"first")
        await log.seal_now()
        await queue.send(b"second")
        for _ in range(2):
            kept = log.droppable_lsn, database.newest_primary().tables.checkpoint
            broker.server.checkpoints.want()
            await eventually(lambda kept=kept: (log.droppable_lsn, database.newest_primary().tables.checkpoint) != kept)
        key = await client.accounts.create_key()
        (segment, *_) = log.closed_segments()
        other = replicas.engine()
        await asyncio.to_thread(other.take)
        before = state_of(replicas)

        match change:
            case "checkpoint":
                broker.server.checkpoints.want()
            case "drop":
                with pytest.raises(LeadLost, match="fenced"):
                    await log.drop_segments([segment.number], 0)
            case "create_key":
                with pytest.raises(CmqError):
                    await client.accounts.create_key()
            case "disable_key":
                with pytest.raises(CmqError):
                    await client.accounts.set_key_enabled(key.secret_id, False)
            case _:
                with pytest.raises(CmqError):
                    await client.accounts.create("customer")
        ended = broker.ended
        assert ended is not None
        await eventually(lambda: ended.done() or state_of(replicas) != before)

    assert state_of(replicas) == before
    assert await ended is ExitCode.FENCED
    other.close()


def state_of(replicas: Replicas) -> object:
    """All that the engine keeps."""
    tables = replicas.database.newest_primary().tables
    return replicas.rows, tables.checkpoint, tables.accounts, tables.log_id


async def test_a_standby_refuses_inside_of_tls(replicas: Replicas, tmp_path: Path) -> None:
    leader = DaemonOverEngine(replicas, tmp_path / "a")
    leader.begin()
    await leader.led()
    make_certificate(tmp_path, "localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    standby = DaemonOverEngine(replicas, tmp_path / "b", tls_certificate=certificate, tls_key=key)
    standby.begin()
    await eventually(lambda: standby.port and standby.replica.log.accounts is not None)

    reader, writer = await asyncio.open_connection("127.0.0.1", standby.port, ssl=trusting_context())
    writer.write(b"CMQD\x01\x00" + b"\x00" * 8)
    answer = await reader.read()

    assert leader.address.encode() in answer
    writer.close()
    plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", standby.port)
    plain_writer.write(b"CMQD\x01\x00" + b"\x00" * 8)
    assert leader.address.encode() not in await plain_reader.read()
    plain_writer.close()
    assert await standby.end() is ExitCode.OK
    assert await leader.end() is ExitCode.OK


async def test_a_log_with_messages_and_without_accounts_is_refused(replicas: Replicas, tmp_path: Path) -> None:
    leader = DaemonOverEngine(replicas, tmp_path / "a")
    leader.begin()
    await leader.led()
    async with cmqd_client.connect(leader.url) as client:
        await client.create_queue("orders")
    await leader.end()
    replicas.database.newest_primary().tables.accounts = None

    again = DaemonOverEngine(replicas, tmp_path / "a")
    again.begin()

    assert again.ended is not None
    assert await again.ended is ExitCode.CANNOT_OPEN
    assert replicas.database.newest_primary().tables.accounts is None
