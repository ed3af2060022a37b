"""Finding the server: contexts and CMQ_URL, and several hosts in a URL."""

from pathlib import Path

import pytest

from cmqd_client import connect
from cmqd_client.address import Address, parse_address
from cmqd_client.connection import Connection
from cmqd_client.contexts import ContextError
from cmqd_client.errors import AuthenticationFailed, CmqError, ServerUnreachable, Standby, TooManyConnections
from cmqd_client.links.hosts_in_turn import HostsInTurn
from support.cases import each_case
from support.client.local_server import LocalServer

# ---------------------------------------------------------------------- without a URL


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty environment with a context file of two contexts."""
    monkeypatch.delenv("CMQ_URL", raising=False)
    path = tmp_path / "contexts.toml"
    path.write_text(
        'current = "kitchen"\n[contexts.kitchen]\nurl = "cmq://a:b@kitchen"\n[contexts.bar]\nurl = "cmq://a:b@bar"\n'
    )
    monkeypatch.setenv("CMQ_CONTEXT_FILE", str(path))
    return path


def test_without_a_url_the_current_context_is_used(contexts: Path) -> None:
    assert connect().address.host == "kitchen"
    assert connect(context="bar").address.host == "bar"


def test_the_url_of_the_environment_comes_before_the_current_context(
    contexts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMQ_URL", "cmq://a:b@environment")
    assert connect().address.host == "environment"
    assert connect(context="bar").address.host == "bar", "a named context comes first"
    assert connect("cmq://a:b@given").address.host == "given"


def test_the_file_of_the_user_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CMQ_URL", "CMQ_CONTEXT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ContextError, match="no server chosen: give a URL") as caught:
        connect()
    assert caught.value.missing

    (tmp_path / "cmq").mkdir()
    (tmp_path / "cmq" / "contexts.toml").write_text('current = "x"\n[contexts.x]\nurl = "cmq://a:b@home"\n')
    assert connect().address.host == "home"


def test_a_context_that_is_missing_or_in_doubt_is_refused(contexts: Path) -> None:
    with pytest.raises(ContextError, match="has no context 'cellar'; its contexts are bar, kitchen"):
        connect(context="cellar")
    with pytest.raises(TypeError, match="url or context"):
        connect("cmq://a:b@h", context="bar")
    contexts.unlink()
    with pytest.raises(ContextError, match="there is no context file"):
        connect()


# ---------------------------------------------------------------------- several hosts


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("cmq://a:b@one:1,two:2", [("one", 1), ("two", 2)]),
        ("cmq://a:b@one,two", [("one", 5680), ("two", 5680)]),
        ("cmq://a:b,c%40d@[::1]:1,two/?tls=1", [("::1", 1), ("two", 5680)]),
    ],
)
def test_a_url_can_name_several_hosts(url: str, hosts: list[tuple[str, int]]) -> None:
    address = parse_address(url)

    assert [(each.host, each.port) for each in address.each()] == hosts
    assert all(not each.others and each.tls == address.tls for each in address.each())
    assert parse_address(address.url()) == address


@pytest.mark.parametrize("url", ["cmq://a:secret@one,", "cmq://a:secret@,two", "cmq://a:secret@one,two:x"])
def test_each_host_must_be_complete(url: str) -> None:
    with pytest.raises(ValueError, match=r"names no host|malformed") as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


async def test_a_host_that_is_down_is_passed_over(server: LocalServer, silent_ports: tuple[int, int]) -> None:
    url = server.url.replace("@", f"@127.0.0.1:{silent_ports[0]},")
    async with connect(url) as client:
        await client.queue("orders").send(b"one")
    assert await server.bodies("orders") == [b"one"]


async def test_hosts_that_are_all_down_are_all_named(silent_ports: tuple[int, int]) -> None:
    first, second = silent_ports
    with pytest.raises(ServerUnreachable, match=rf"127.0.0.1:{first} cannot.*; 127.0.0.1:{second} cannot"):
        async with connect(f"cmq://a:b@127.0.0.1:{first},127.0.0.1:{second}", patience=1):
            pass


class _Hosts:
    """Hosts that fail to order; notes the attempts."""

    def __init__(self, **errors: CmqError) -> None:
        self.errors = errors
        self.attempts: list[str] = []

    async def open(self, address: Address, **_: object) -> Connection:
        self.attempts.append(address.host)
        if address.host in self.errors:
            raise self.errors[address.host]
        return None  # type: ignore[return-value]


def _opener(hosts: _Hosts) -> HostsInTurn:
    return HostsInTurn(hosts.open, parse_address("cmq://a:b@one,two,three").each(), 5.0)


async def _open(opener: HostsInTurn) -> None:
    await opener(on_ended=lambda _: None, next_request_id=lambda: 1, on_push=lambda _, __: None)


async def test_the_host_of_the_last_connection_is_tried_first() -> None:
    hosts = _Hosts(one=ServerUnreachable("1"))
    opener = _opener(hosts)

    await _open(opener)
    await _open(opener)
    hosts.errors["two"] = ServerUnreachable("2")
    await _open(opener)

    assert hosts.attempts == ["one", "two", "two", "two", "three"]


@each_case(
    ("errors", "raised"),
    [
        ({"one": AuthenticationFailed("x"), "two": ServerUnreachable("y"), "three": ServerUnreachable("z")}, "y"),
        ({"one": AuthenticationFailed("x"), "two": TooManyConnections("y"), "three": AuthenticationFailed("z")}, "y"),
        ({"one": AuthenticationFailed("x"), "two": AuthenticationFailed("y"), "three": AuthenticationFailed("z")}, "x"),
        # The leader knows the key; its standbys do not look at it.
        ({"one": Standby("x"), "two": AuthenticationFailed("y"), "three": Standby("z")}, "y"),
        ({"one": Standby("x"), "two": ServerUnreachable("y"), "three": Standby("z")}, "y"),
        ({"one": Standby("x"), "two": Standby("y"), "three": Standby("z")}, "x"),
    ],
)
async def test_an_error_that_may_pass_goes_before_a_final_refusal(errors: dict[str, CmqError], raised: str) -> None:
    hosts = _Hosts(**errors)
    with pytest.raises(CmqError) as caught:
        await _open(_opener(hosts))
    assert caught.value.text == raised
    assert hosts.attempts == ["one", "two", "three"]
