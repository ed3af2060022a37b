"""SIGHUP: the settings and the TLS files are read again, without ending a connection.

Taken at once: the log level, and the TLS certificate and key if TLS is on before and after. Every other setting that
differs is named in the log and needs a restart. Settings that are refused, and a certificate and key that do not fit,
change nothing. The HTTP gateway that runs as a child gets the settings that were taken.
"""

import asyncio
import dataclasses
import ssl
from collections.abc import Callable
from typing import Any

from cmqd.server.binary.listener import Listener
from cmqd.server.broker_logger import get_logger
from cmqd.server.process.http_gateway import HttpGateway
from cmqd.server.process.listening import tls_context_of
from cmqd.settings import SettingError, Settings
from cmqd_logs.lines import set_log_level

_log = get_logger()


class Reload:
    """Reads settings again; see the module."""

    def __init__(self, settings: Settings, read_again: Callable[[], Settings]) -> None:
        """``read_again`` loads file, environment and flags as the start did."""
        self.in_force: Settings = settings
        """The settings of the start, with the settings that a reload has taken."""
        self._read_again = read_again
        self._lock = asyncio.Lock()

    async def run(self, listener: Listener | None, gateway: HttpGateway | None = None) -> None:
        """Apply the settings that do not need a restart.

        Args:
            listener: None before the server listens: the start reads the TLS files itself.
            gateway: None without a child.
        """
        # Two signals in a row must not apply the older files last.
        async with self._lock:
            try:
                read = await asyncio.to_thread(self._read_again)
            except SettingError as refusal:
                _log.error("reload_refused", reason=str(refusal), text="nothing was changed")
                return
            set_log_level(read.log_level)
            self._take(read, "log_level")
            tls = await self._reload_tls(read, listener)
            _log.info("reloaded", log_level=str(read.log_level), tls_files=tls)
            if gateway is not None:
                gateway.reload(self.in_force)
            in_force = self.in_force.as_table()
            for name, value in read.as_table().items():
                if value != in_force[name]:
                    _log.warning("needs_restart", setting=name, in_force=in_force[name], read=value)

    async def _reload_tls(self, read: Settings, listener: Listener | None) -> bool:
        """Return whether new handshakes use the files as they are now."""
        if listener is None or not listener.uses_tls or read.tls_certificate is None:
            return False
        try:
            context = await asyncio.to_thread(tls_context_of, read)
        except (OSError, ssl.SSLError) as failure:
            _log.error("tls_not_reloaded", reason=str(failure), text="the certificate and key before stay in use")
            return False
        assert context is not None
        listener.use_tls(context)
        self._take(read, "tls_certificate", "tls_key")
        return True

    def _take(self, read: Settings, *names: str) -> None:
        """Take settings with their origins."""
        values: dict[str, Any] = {name: getattr(read, name) for name in names}
        origins = {**self.in_force.origins, **{name: read.origin_of(name) for name in names}}
        self.in_force = dataclasses.replace(self.in_force, **values, origins=origins)
