"""Preparations for listening, for every wire protocol: the limit of connections, TLS."""

import ssl
from typing import Final

from cmqd.settings import Settings
from cmqd_sockets.tls import tls_context

KEPT_BACK_DESCRIPTORS: Final = 64
"""For the pipes to the storage process, files of accounts, the listening sockets and their spare."""


def connection_limit(requested: int, descriptors: int, pushes: int = 0) -> int:
    """Return the number of connections to serve: the requested number (0 = unlimited) within the descriptors that are
    left beside the pushes in progress, which reserve a quarter of the descriptors at most.
    """
    possible = max(1, descriptors - KEPT_BACK_DESCRIPTORS - min(pushes, descriptors // 4))
    return min(requested, possible) if requested else possible


def tls_context_of(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the settings, None without TLS.

    Raises:
        OSError, ssl.SSLError: certificate or key cannot be used.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return tls_context(settings.tls_certificate, settings.tls_key)
