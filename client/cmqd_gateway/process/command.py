"""The command ``cmqd-gateway``: settings from flags, then the gateway until SIGTERM. SIGHUP reads the TLS files again.

The gateway's own key, of the role ``gateway``, comes through a file descriptor (``--key-fd``) or a file of mode 0600
(``--key-file``), as a line ``SECRET_ID:SECRET_KEY``: never as an argument or in the environment, where other users of
the machine can read it.
"""

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import ssl
import stat
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import uvloop
from cyclopts import App, CycloptsError, Parameter

from cmqd_client import Client, connect
from cmqd_client.address import Address, parse_address
from cmqd_client.client_names import default_name
from cmqd_client.events import OnEvent
from cmqd_gateway.broker.broker_keys import BrokerKeys
from cmqd_gateway.broker.peers import Peers
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.process.gateway_logger import get_logger
from cmqd_gateway.process.gateway_reload import Reload
from cmqd_gateway.process.gateway_settings import Settings, SettingsError, is_loopback, shown, split_address
from cmqd_gateway.server import GatewayServer, ready_facts
from cmqd_logs import lines
from cmqd_logs.levels import LogFormat
from cmqd_logs.lines import configure_logs
from cmqd_sockets.listening import raise_descriptor_limit
from cmqd_sockets.tls import tls_context

if TYPE_CHECKING:
    from cmqd_gateway.processes.share import Share

USAGE: Final = 2
CANNOT_OPEN: Final = 3
REFUSED: Final = 4
MAX_KEY_BYTES: Final = 1_024
_PR_SET_DUMPABLE: Final = 4
_PRODUCT: Final = "cmqd-gateway"

_log = get_logger()

app = App(
    name="cmqd-gateway",
    help="Serve CMQ's HTTP API, a JSON API, metrics and health for a cmqd broker.",
    version=version("cmqd"),
    version_flags=["--version"],
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        result = app(arguments, result_action="return_value", exit_on_error=False, print_error=False)
    except (CycloptsError, SettingsError) as refusal:
        print(f"cmqd-gateway: {refusal}", file=sys.stderr)
        return USAGE
    return result if isinstance(result, int) else 0


@app.default
def serve(
    *,
    broker: str = "cmq://127.0.0.1:5680",
    key_fd: int | None = None,
    key_file: Path | None = None,
    parent_fd: int | None = None,
    check: Annotated[bool, Parameter(negative="")] = False,
    settings: Annotated[Settings | None, Parameter(name="*")] = None,
) -> int:
    """Run the gateway until SIGTERM or SIGINT; then it ends long polls and lets other requests finish.

    Args:
        broker: URL of the broker without a key: cmq://host:port[,host:port][?region=..&tls=1].
        key_fd: descriptor with the gateway's own key, a line SECRET_ID:SECRET_KEY; read up to the end of the line.
        key_file: file with the same line, readable by its owner alone.
        parent_fd: pipe of a parent process: its end ends the gateway, its lines are settings to reload, or the
            readiness of the broker. May be the descriptor of the key.
        check: check the settings, the key and the files that the settings name, and end.
        settings: the settings.
    """
    settings = settings or Settings()
    try:
        address = broker_address(broker, read_key(key_fd, key_file))
        metrics_key = None if settings.metrics_key_file is None else key_of(read_key(None, settings.metrics_key_file))
        if check and settings.tls_certificate is not None and settings.tls_key is not None:
            tls_context(settings.tls_certificate, settings.tls_key)
    except (OSError, ValueError) as refusal:
        print(f"cmqd-gateway: {refusal}", file=sys.stderr)
        return USAGE
    if check:
        return 0
    hide_memory()
    _tune_collector()
    raise_descriptor_limit()
    configure_logs(as_json=settings.log_format is LogFormat.JSON, level=settings.log_level)
    lines.take_lines_of_libraries()
    if settings.http_processes > 1:
        # Imported here: a gateway of a single process does not load the parent.
        from cmqd_gateway.processes.parent import Parent

        def run_process(settings: Settings, lines_fd: int, share: "Share") -> int:
            return uvloop.run(_run(settings, address, metrics_key, lines_fd, share))

        try:
            return Parent(settings, parent_fd, run_process, frozenset((CANNOT_OPEN, REFUSED))).run()
        except OSError as failure:
            _log.error("cannot_listen", reason=str(failure))
            return CANNOT_OPEN
    return uvloop.run(_run(settings, address, metrics_key, parent_fd))


def read_key(key_fd: int | None, key_file: Path | None) -> str:
    """Read the gateway's own key; ``SECRET_ID:SECRET_KEY``.

    Raises:
        ValueError: neither or both are given, or there is no key, or other users can read the file.
        OSError: the file or the descriptor cannot be read.
    """
    if (key_fd is None) == (key_file is None):
        raise ValueError("the gateway's own key is missing: give either --key-fd or --key-file")
    if key_file is not None:
        if stat.S_IMODE(key_file.stat().st_mode) & 0o077:
            raise ValueError(f"{key_file} can be read by other users; its mode must be 0600")
        line = key_file.read_bytes()[:MAX_KEY_BYTES]
    else:
        assert key_fd is not None
        line = b""
        while b"\n" not in line and len(line) < MAX_KEY_BYTES:
            # Byte by byte: bytes behind the line belong to the next reader of the descriptor.
            byte = os.read(key_fd, 1)
            if not byte:
                break
            line += byte
    key = line.split(b"\n")[0].strip()
    secret_id, colon, secret_key = key.partition(b":")
    if not colon or not secret_id or not secret_key or not key.isascii():
        raise ValueError("the gateway's own key is malformed; it must be a line SECRET_ID:SECRET_KEY")
    return key.decode()


def key_of(line: str) -> KeySecret:
    """Return the key of a line of :func:`read_key`."""
    secret_id, _, secret_key = line.partition(":")
    return KeySecret(secret_id, secret_key)


def broker_address(url: str, key: str) -> Address:
    """Return the address of the broker with the gateway's own key.

    Raises:
        ValueError: the URL is malformed or has a key.
    """
    scheme, separator, rest = url.partition("://")
    if "@" in rest:
        raise ValueError("the URL of the broker has a key; give it by --key-fd or --key-file")
    if not separator or scheme != "cmq":
        raise ValueError("the URL of the broker must start with cmq://")
    # Parsed with a stand-in: a key may have characters that have a meaning in URLs.
    address = parse_address(f"{scheme}://id:key@{rest}")
    secret_id, _, secret_key = key.partition(":")
    return msgspec.structs.replace(address, secret_id=secret_id, secret_key=secret_key)


def client_of(peers: Peers, settings: Settings, key: KeySecret, on_event: OnEvent | None = None) -> Client:
    """Return a client of the broker with a caller's key."""
    client = connect(
        msgspec.structs.replace(peers.leader, secret_id=key.secret_id, secret_key=key.secret_key),
        patience=settings.broker_patience_seconds,
        # A single repeat, for a request with a lost connection. A temporary refusal is repeated by the SDK: repeats
        # here, up to the client's time limit, would load a busy broker and hold the HTTP connection.
        retries=1,
        product=_PRODUCT,
        name=default_name(_PRODUCT),
        tracing=False,
        follow=peers.follow,
        on_event=on_event,
    )
    client.learn_addresses(peers.addresses)
    return client


async def _run(
    settings: Settings,
    address: Address,
    metrics_key: KeySecret | None,
    parent_fd: int | None,
    share: "Share | None" = None,
) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    lines.report_regularly(loop.call_later)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    own_key = KeySecret(address.secret_id, address.secret_key)
    peers = Peers(address)
    keys = BrokerKeys(client_of(peers, settings, own_key, peers.event))
    gateway = Gateway(settings, keys, partial(client_of, peers, settings), share=share)
    peers.clients = lambda: [keys.client, *gateway.connections.clients()]

    def moved() -> None:
        gateway.connections.replace_all()
        gateway.readiness.has_followed = not peers.is_at_home

    peers.on_moved = moved
    gateway.metrics_key = metrics_key
    gateway.readiness.probe = keys.probe
    gateway.sampler.own_keys = [own_key] if metrics_key is None else [own_key, metrics_key]
    server = GatewayServer(gateway)
    reload = Reload(server, settings, peers)
    loop.add_signal_handler(signal.SIGHUP, reload.begin)
    if parent_fd is not None:
        _watch_parent(parent_fd, lambda line: gateway.readiness.take(line) or reload.begin(line), stopped.set)
    # The gateway listens before the broker answers, and refuses requests until then. Therefore broker and gateway can
    # start in any order.
    opening = asyncio.create_task(keys.open(gateway.key_changed))
    opening.add_done_callback(lambda _: stopped.set() if _failure(opening) else None)
    try:
        await server.start()
        if share is None or share.is_first:
            _tell_ready(server, settings, address)
        await stopped.wait()
        _log.info("gateway_draining", connections=len(gateway.guards) + gateway.guards.other_connections)
        await server.close()
    except (OSError, ssl.SSLError) as failure:
        _log.error("cannot_listen", reason=str(failure))
        return CANNOT_OPEN
    finally:
        opening.cancel()
        await asyncio.wait([opening])
        await keys.close()
    failure = _failure(opening)
    if failure is not None:
        _log.error("broker_refuses_gateway", reason=str(failure))
        return REFUSED
    lines.report_left_out()
    _log.info("gateway_ended")
    return 0


def _tell_ready(server: GatewayServer, settings: Settings, address: Address) -> None:
    """Write the ready file and the lines of a gateway that listens."""
    facts = ready_facts(server)
    if settings.ready_file is not None:
        write_ready_file(settings.ready_file, msgspec.json.encode(facts) + b"\n")
    _log.info(
        "gateway_ready",
        addresses=facts["addresses"],
        cmq_tcp_address=facts["cmq_tcp_address"],
        broker=f"{address.host}:{address.port}",
        **shown(settings),
    )
    warn_without_tls(settings)


_CLEAR: Final = {
    "listen": "secrets of the JSON API, of /metrics and message bodies cross the network in the clear",
    "metrics_listen": "secrets of the JSON API, of /metrics and message bodies cross the network in the clear",
    "listen_cmq_tcp": "message bodies and log-ins cross the network in the clear; a copied log-in is valid until the"
    " secret of its key changes",
}


def warn_without_tls(settings: Settings) -> None:
    """Write a warning for each address without TLS that other machines can use."""
    for name, text in _CLEAR.items():
        address = getattr(settings, name)
        if address and not is_loopback(split_address(name, address)[0]):
            _log.warning("listening_without_tls", setting=name, address=address, text=text)


def write_ready_file(path: Path, content: bytes) -> None:
    """Write the file beside and rename it, so that a reader of the file sees all of it."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    beside.rename(path)


def _failure(opening: "asyncio.Task[None]") -> BaseException | None:
    """Return the error that ended the connecting."""
    return None if not opening.done() or opening.cancelled() else opening.exception()


def _watch_parent(descriptor: int, on_line: Callable[[bytes], object], on_end: Callable[[], object]) -> None:
    """Call ``on_line`` for each line of a pipe, and ``on_end`` when the other end of the pipe is closed."""
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    incomplete = b""

    def readable() -> None:
        nonlocal incomplete
        with contextlib.suppress(BlockingIOError):
            received = os.read(descriptor, 4_096)
            if not received:
                loop.remove_reader(descriptor)
                on_end()
                return
            *lines, incomplete = (incomplete + received).split(b"\n")
            for line in lines:
                on_line(line)

    loop.add_reader(descriptor, readable)


def _tune_collector() -> None:
    """Run the garbage collector for every 20,000 new objects, not for every 700.

    The defaults look at the objects of requests in progress several times in each turn of the loop. With 64 requests at
    once that took a tenth of the CPU, and found no garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def hide_memory() -> None:
    """Have the system write no core dump of this process: its memory holds secrets."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # A core dump that the system pipes to a program ignores the limit, but not this flag.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
