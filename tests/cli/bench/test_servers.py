"""Runs over TLS, over several servers, and without a server at their end."""

from pathlib import Path
from weakref import WeakSet

import msgspec
import pytest

from cmq_cli.bench import crews
from cmq_cli.bench.crews import CONNECTION_LOST, Crew, hired
from cmq_cli.bench.objects import Objects, Target
from cmq_cli.bench.plans import CyclePlan, Plan, RatePlan, SendPlan
from cmq_cli.bench.results import Measured, Second
from cmq_cli.bench.runs import Run
from cmq_cli.exitcodes import CommandFailed, ExitCode
from cmqd_client.address import Address, parse_address
from cmqd_load import connections
from cmqd_load.tally import Quota, Tally
from cmqd_load.wire import LoadConnection
from cmqd_protocol import messages as wire
from support.client.cmq_runs import Cmq, ThreadedServer
from support.client.local_server import LocalServer
from support.processes.silent_port import reserve_port

TLS = Path(__file__).parents[2] / "support" / "tls"


async def run(plan: Plan, *targets: Target) -> Measured:
    def pass_over(_second: Second, _is_measured: bool) -> None: ...

    return await Run(plan, plan.check(), pass_over).run(Objects(list(targets)))


async def test_connections_speak_tls_and_check_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LocalServer(tls_certificate=TLS / "certificate.pem", tls_key=TLS / "key.pem") as server:
        address = msgspec.structs.replace(parse_address(server.direct_url), tls=True)
        plan = SendPlan(messages=4, warm_up=0, duration=600, connections=1)

        refused = await run(plan, Target("orders", [address]))
        monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "certificate.pem"))
        measured = await run(plan, Target("orders", [address]))

    assert "certificate" in str(refused.failure)
    assert (measured.failure, measured.total.sent) == (None, 4)


@pytest.mark.parametrize(
    "plan",
    [
        CyclePlan(messages=40, warm_up=0, duration=600, connections=3, queues=2),
        RatePlan(messages=40, warm_up=0, duration=600, connections=2, queues=2, rate=1000),
    ],
    ids=["closed", "open"],
)
async def test_each_queue_is_loaded_at_its_own_server(plan: CyclePlan | RatePlan) -> None:
    async with LocalServer() as first, LocalServer() as second:
        targets = [Target("orders", [parse_address(server.direct_url)]) for server in (first, second)]
        measured = await run(plan, *targets)
        served = [(await server.admin.status())["counters"]["deleted"] for server in (first, second)]

    assert (measured.failure, measured.total.errors) == (None, {})
    assert min(served) > 0


async def test_servers_need_a_connection_each() -> None:
    plan = SendPlan(connections=1)
    addresses = [Address(secret_id="a", secret_key="b", host="host", port=port) for port in (1, 2)]
    objects = Objects([Target(f"q-{address.port}", [address]) for address in addresses])
    crew = Crew(Tally(), lambda _: None, reconnects=True)

    with pytest.raises(CommandFailed, match="on 2 servers; give at least as many --connections"):
        await hired(crew, plan, plan.check(), objects, Tally(), Quota(1))


async def test_the_next_address_of_a_queue_is_tried(unused_address: Address) -> None:
    async with LocalServer() as server:
        plan = SendPlan(messages=4, warm_up=0, duration=600, connections=1)
        measured = await run(plan, Target("orders", [unused_address, parse_address(server.direct_url)]))

    assert (measured.failure, measured.total.sent) == (None, 4)


async def test_a_run_that_finds_no_server_has_its_error_for_a_result(unused_address: Address) -> None:
    measured = await run(SendPlan(), Target("orders", [unused_address]))

    assert isinstance(measured.failure, OSError)
    assert measured.by_second == []


class Away(ConnectionError):
    """An error that has weak references."""


async def test_attempts_to_connect_that_fail_leave_nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception and the frame that keeps it are a cycle: a server that is away would fill the memory of a run."""
    plan, alive = CyclePlan(messages=10, warm_up=0, duration=600, connections=1), [0]
    monkeypatch.setattr(crews, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(crews, "LONGEST_PAUSE", 0.0)
    original, failures, marks = connections.open_connection, 0, WeakSet[Away]()

    async def fails_often(address: Address, seconds: float) -> LoadConnection:
        nonlocal failures
        if server.link.of(wire.SendMessages) and failures < 5_000:
            failures += 1
            error = Away()
            marks.add(error)
            alive.append(len(marks))
            raise error
        return await original(address, seconds)

    monkeypatch.setattr(connections, "open_connection", fails_often)
    async with LocalServer() as server:
        server.link.drop_request(wire.SendMessages)
        measured = await run(plan, Target("orders", [parse_address(server.url)]))

    assert (measured.failure, failures) == (None, 5_000)
    assert max(alive) < 2_500


@pytest.fixture
def unused_address() -> Address:
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
    return Address(secret_id="a", secret_key="b", host="127.0.0.1", port=port)


def test_a_run_that_cannot_remove_its_queues_names_them(cmq_at: Cmq, server: ThreadedServer) -> None:
    server.when(lambda: len(server.local.link.of(wire.SendMessages)) > 3, server.local.link.stop)

    ran = cmq_at("bench", "send", "--no-reconnect", "--timeout", "50ms", "--duration", "10m", "--queue", "mine")

    assert ran.code == ExitCode.UNREACHABLE
    assert "warning: not removed: queue mine (" in ran.err
    assert "the server removes a queue of the run after 10 minutes without use" in " ".join(ran.err.split())
    assert CONNECTION_LOST in ran.out or "a connection was lost" in ran.err
