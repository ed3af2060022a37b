"""The server of a gateway: its HTTP application, its listeners and its end.

    async with GatewayServer(Gateway(settings, source, make_client)) as server: ...

On leaving, the gateway accepts no more connections, ends long polls without messages, lets other requests finish, and
closes its connections to the broker.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from aiohttp import web
from aiohttp.typedefs import Middleware

from cmqd_gateway.cmq import root
from cmqd_gateway.console import events as console_events
from cmqd_gateway.console import routes as console_routes
from cmqd_gateway.gateway import Gateway
from cmqd_gateway.http.connection_guard import CHECK_SECONDS, MAX_HEAD_BYTES, DirectDoor
from cmqd_gateway.http.https_port import TlsPort
from cmqd_gateway.monitoring import routes as monitoring_routes
from cmqd_gateway.process.gateway_logger import get_logger
from cmqd_gateway.process.gateway_settings import split_address
from cmqd_gateway.rest import routes as rest_routes
from cmqd_sockets.tls import tls_context

if TYPE_CHECKING:
    from cmqd_gateway.processes.first_process import FirstProcess

DRAIN_SECONDS: Final = 5.0
"""Time for requests in progress at the end."""
LINGERING_SECONDS: Final = 5.0
"""Time to read and drop the rest of a refused body."""
BACKLOG: Final = 1_024
_NEVER_SECONDS: Final = 1e9
READ_BUFFER_BYTES: Final = 65_536
_SHOWN_CHARACTERS: Final = 200

_log = get_logger()


class GatewayServer:
    """Listens for a gateway; see the module."""

    def __init__(self, gateway: Gateway) -> None:
        """Keep the gateway; :meth:`start` listens."""
        self.gateway: Gateway = gateway
        self.addresses: list[tuple[str, int]] = []
        """Hosts and ports of the listeners, HTTP first."""
        self._servers: list[asyncio.Server] = []
        self._tls_port: TlsPort | None = None
        """None without HTTPS."""
        self.door: DirectDoor | None = None
        """Handles frequent requests; None = aiohttp has all requests."""
        self.metrics_address: tuple[str, int] | None = None
        """Host and port of the listener for metrics alone, if the gateway has this listener."""
        self._runners: list[web.AppRunner] = []
        self._checker: asyncio.Task[None] | None = None
        self._first: FirstProcess | None = None
        """The first of several processes, for a further one."""

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError, ssl.SSLError: an address or the TLS files cannot be used.
        """
        settings = self.gateway.settings
        self.door = door = _door(self.gateway)
        try:
            runner = await self._run(_api_routes(self.gateway), await self._join())
            if settings.listen:
                self.addresses.append(await self._listen(runner, door, "listen", settings.listen, None))
            if settings.listen_https:
                assert settings.tls_certificate is not None
                assert settings.tls_key is not None
                tls = tls_context(settings.tls_certificate, settings.tls_key)
                self.addresses.append(await self._listen(runner, door, "listen_https", settings.listen_https, tls))
            if settings.listen_cmq_tcp and self._is_first:
                # Imported here: a gateway without this protocol does not load the protocol.
                from cmqd_gateway.cmq.tcp.connections import Connections

                self.gateway.cmq_tcp = Connections(self.gateway)
                await self.gateway.cmq_tcp.listen(*split_address("listen_cmq_tcp", settings.listen_cmq_tcp))
            if settings.metrics_listen and self._is_first:
                runner = await self._run(monitoring_routes.routes(self.gateway, with_metrics=True))
                self.metrics_address = await self._listen(runner, None, "metrics_listen", settings.metrics_listen, None)
        except BaseException:
            await self.close()
            raise
        self._checker = asyncio.create_task(self._check())
        if self._is_first:
            self.gateway.sampler.start()

    async def reload_tls(self, certificate: Path, key: Path) -> bool:
        """Use these files for all later handshakes; return False if the files cannot be used, or without HTTPS.

        Connections stay. After files that cannot be used, the former files stay in use.
        """
        if self._tls_port is None:
            return False
        try:
            # A thread: reading files must not hold up requests.
            self._tls_port.context = await asyncio.to_thread(tls_context, certificate, key)
        except (OSError, ssl.SSLError) as failure:
            _log.error("tls_not_reloaded", reason=str(failure), text="the certificate and key before stay in use")
            return False
        return True

    async def close(self) -> None:
        """End; harmless when repeated. See the module."""
        self.gateway.is_draining = True
        for server in self._servers:
            server.close()
        if self.gateway.cmq_tcp is not None:
            self.gateway.cmq_tcp.stop_listening()
        if self._tls_port is not None:
            await self._tls_port.close()
        if self._checker is not None:
            self._checker.cancel()
        # The long polls first: they would hold their connections for 30 s. Other requests have the whole time for the
        # answer of the broker and for the write of theirs.
        await self.gateway.end_polls()
        if self._first is not None:
            self._first.forwarding.end_streams()
        if self.gateway.cmq_tcp is not None:
            await self.gateway.cmq_tcp.close(DRAIN_SECONDS)
        began = asyncio.get_running_loop().time()
        await self.gateway.guards.end_direct(DRAIN_SECONDS)
        left = max(0.0, DRAIN_SECONDS - (asyncio.get_running_loop().time() - began))
        runners, self._runners = self._runners, []
        for runner in runners:
            if runner.server is not None:
                # Idle connections close at once; the shutdown would wait for the whole time for their next request.
                runner.server.pre_shutdown()
                # aiohttp waits twice for so long: for the handler, and then for the end of its task.
                await runner.server.shutdown(left / 2)
            await runner.cleanup()
        if self._first is not None:
            await self._first.close()
        if self.gateway.further is not None:
            self.gateway.further.close()
        # Last: messages of answers that were not written go back to their queues over these connections.
        await self.gateway.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ inside

    @property
    def _is_first(self) -> bool:
        """True for the first of several processes, and for a gateway of a single process."""
        return self.gateway.share is None or self.gateway.share.is_first

    async def _join(self) -> Sequence[Middleware]:
        """Open the ways to the other processes, if there are any; return the middlewares of this process."""
        share = self.gateway.share
        if share is None:
            return ()
        # Imported here: a gateway of a single process does not load the ways.
        if share.is_first:
            from cmqd_gateway.processes.forwarding import remove_socket, with_origin
            from cmqd_gateway.processes.further_processes import FurtherProcesses

            self.gateway.further = FurtherProcesses(self.gateway, share)
            remove_socket(share.forwarded_to)
            forwarded = await self._run(_api_routes(self.gateway), outer=[with_origin])
            await web.UnixSite(forwarded, share.forwarded_to).start()
            return ()
        from cmqd_gateway.processes.first_process import FirstProcess

        first = self._first = FirstProcess(self.gateway, share)
        return [first.forwarding.handle]

    async def _run(
        self,
        routes: Iterable[web.AbstractRouteDef],
        inner: Sequence[Middleware] = (),
        outer: Sequence[Middleware] = (),
    ) -> web.AppRunner:
        settings = self.gateway.settings
        runner = web.AppRunner(
            _application(self.gateway, routes, inner, outer),
            handle_signals=False,
            handler_cancellation=True,
            access_log=None,
            logger=_silent_logger(),
            # The guard closes idle connections: aiohttp does not see the direct requests.
            keepalive_timeout=_NEVER_SECONDS,
            lingering_time=LINGERING_SECONDS,
            max_line_size=settings.max_head_bytes,
            max_field_size=settings.max_head_bytes,
            # Each connection may hold twice as many bytes that no handler has asked for.
            read_bufsize=READ_BUFFER_BYTES,
            # A compressed body would cost more memory than its bytes; SDKs send none.
            auto_decompress=False,
        )
        self._runners.append(runner)
        await runner.setup()
        return runner

    async def _listen(
        self, runner: web.AppRunner, door: DirectDoor | None, name: str, address: str, tls: ssl.SSLContext | None
    ) -> tuple[str, int]:
        host, port = split_address(name, address)
        make_inner = runner.server
        assert make_inner is not None
        gateway = self.gateway
        make_protocol: Callable[[], asyncio.Protocol] = lambda: gateway.guards.make(make_inner(), door)  # noqa: E731
        if tls is not None:
            self._tls_port = TlsPort(
                tls,
                gateway.guards,
                lambda: gateway.guards.make(make_inner(), door, has_seat=True),
                gateway.settings.slow_client_seconds,
            )
            make_protocol = self._tls_port.make_arrival
        server = await asyncio.get_running_loop().create_server(
            make_protocol,
            host,
            port,
            backlog=BACKLOG,
            reuse_port=gateway.shares_ports or None,
        )
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.gateway.guards.close_slow()
            if self.gateway.cmq_tcp is not None:
                self.gateway.cmq_tcp.check()
            self.gateway.connections.close_idle()
            self.gateway.secrets.drop_unconfirmed()
            if self.door is not None:
                self.door.drop_unconfirmed()
            self.gateway.figures.drop_old()
            if self._first is not None:
                self._first.tell_figures()


def _door(gateway: Gateway) -> DirectDoor | None:
    """Return the door for frequent requests; None without httptools, which lacks a wheel for some machines."""
    if find_spec("httptools") is None:
        return None
    from cmqd_gateway.rest.direct import DirectRequests

    return DirectRequests(gateway)


def _api_routes(gateway: Gateway) -> Iterable[web.AbstractRouteDef]:
    yield from root.routes(gateway, console_routes.serve_root)
    yield from rest_routes.routes(gateway)
    # Before the console's pages, which take every other path below /console/.
    yield from console_events.routes(gateway)
    yield from console_routes.routes(gateway)
    yield from monitoring_routes.routes(gateway, with_metrics=not gateway.settings.metrics_listen)


def _application(
    gateway: Gateway, routes: Iterable[web.AbstractRouteDef], inner: Sequence[Middleware], outer: Sequence[Middleware]
) -> web.Application:
    @web.middleware
    async def in_request(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            if not gateway.guards.begin_request(request):
                text = f"the head of the request has more than {MAX_HEAD_BYTES} bytes"
                raise web.HTTPRequestHeaderFieldsTooLarge(text=text)
            response = await handler(request)
        except (web.HTTPException, ConnectionError):
            # A lost connection is no fault: aiohttp ends the connection.
            raise
        except Exception as bug:
            path = request.path[:_SHOWN_CHARACTERS]
            _log.error("request_failed", remote=request.remote, path=path, error=type(bug).__name__, exc_info=bug)
            raise web.HTTPInternalServerError from None
        finally:
            gateway.bodies.release(request)
            gateway.guards.end_request(request)
        if gateway.is_draining:
            response.force_close()
        # Written here and not by aiohttp: behind the answer, the next request may be a direct request.
        await response.prepare(request)
        await response.write_eof()
        if response.keep_alive:
            gateway.guards.answered(request)
        return response

    application = web.Application(
        middlewares=[*outer, in_request, *inner], client_max_size=gateway.settings.max_request_bytes
    )
    application.add_routes(routes)
    return application


def _silent_logger() -> logging.Logger:
    """Return a logger for aiohttp that writes no line.

    aiohttp logs a traceback for each malformed request, with bytes of the request: any stranger could fill the log. The
    middleware logs bugs of handlers.
    """
    logger = logging.Logger("cmqd.gateway.http", logging.CRITICAL + 1)
    logger.propagate = False
    return logger


def ready_facts(server: GatewayServer) -> dict[str, Any]:
    """Return the content of the ready file."""
    host, port = server.addresses[0]
    cmq_tcp = server.gateway.cmq_tcp
    is_single = server.gateway.share is None
    return {
        "host": host,
        "port": port,
        "addresses": [_printed(*address) for address in server.addresses],
        "cmq_tcp_address": None if cmq_tcp is None else _printed(*cmq_tcp.address),
        "metrics_address": None if server.metrics_address is None else _printed(*server.metrics_address),
        "pid": os.getpid() if is_single else os.getppid(),
    }


def _printed(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
