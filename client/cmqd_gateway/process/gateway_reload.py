"""Settings that a running gateway takes without a new start: TLS files, log level, addresses of the brokers.

SIGHUP reads the TLS files again. A broker that runs the gateway as a child writes a line for each of its own reloads
into the pipe of the key, because the files may have new names and the child's command line has the old names:

    {"log_level": "debug", "tls_certificate": "/etc/cmqd/chain.pem", "tls_key": "/etc/cmqd/key.pem"}

With redundancy the broker also writes the addresses of the brokers of its log, and each change of them:

    {"addresses": ["10.0.0.1:5680", "10.0.0.2:5680"], "addresses_tls": true}
"""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from cmqd_gateway.broker.peers import Peers
from cmqd_gateway.process.gateway_logger import get_logger
from cmqd_gateway.process.gateway_settings import Settings
from cmqd_gateway.server import GatewayServer
from cmqd_logs.levels import LogLevel
from cmqd_logs.lines import set_log_level

_log = get_logger()


class Changes(msgspec.Struct, frozen=True):
    """Settings of a line of the broker; None = as before."""

    log_level: LogLevel | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    addresses: list[str] | None = None
    """Addresses of the brokers of the log."""
    addresses_tls: bool = False
    """The addresses take TLS."""


NO_CHANGES: Final = Changes()
_decoder = msgspec.json.Decoder(Changes, dec_hook=lambda kind, text: kind(text))


class Reload:
    """Takes new settings; see the module."""

    def __init__(self, server: GatewayServer, settings: Settings, peers: Peers) -> None:
        """Make the object for a server that listens, with the settings of its start."""
        self._server = server
        self._peers = peers
        self._level = settings.log_level
        self._certificate = settings.tls_certificate
        self._key = settings.tls_key
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, line: bytes | None = None) -> None:
        """Take the changes of a line of the broker, or without a line read the TLS files again; in a task.

        A line that cannot be read changes nothing: the log has the reason.
        """
        try:
            changes = NO_CHANGES if line is None else _decoder.decode(line)
        except (msgspec.MsgspecError, ValueError) as error:
            _log.error("reload_line_not_read", reason=str(error))
            return
        if changes.addresses is not None:
            self._peers.use(changes.addresses, tls=changes.addresses_tls)
            return
        task = asyncio.get_running_loop().create_task(self._run(changes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, changes: Changes) -> None:
        # One after the other: two reloads at once could leave the older files in use.
        async with self._lock:
            if changes.log_level is not None and changes.log_level is not self._level:
                self._level = changes.log_level
                set_log_level(self._level)
            certificate = changes.tls_certificate or self._certificate
            key = changes.tls_key or self._key
            is_taken = False
            if certificate is not None and key is not None:
                is_taken = await self._server.reload_tls(certificate, key)
            if is_taken:
                self._certificate, self._key = certificate, key
            _log.info("gateway_reloaded", log_level=str(self._level), tls_files=is_taken)
