"""Preparations for listening, for every wire protocol: descriptors, the limit of connections, TLS."""

import resource
import ssl
from ipaddress import IPv6Address, ip_address
from typing import Final

from cmqd.settings import Settings

KEPT_BACK_DESCRIPTORS: Final = 64
"""For the pipes to the storage process, files of accounts, the listening sockets and their spare."""


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connection_limit(requested: int, descriptors: int, pushes: int = 0) -> int:
    """Return the number of connections to serve: the requested number (0 = unlimited) within the descriptors that are
    left beside the pushes in progress, which reserve a quarter of the descriptors at most.
    """
    possible = max(1, descriptors - KEPT_BACK_DESCRIPTORS - min(pushes, descriptors // 4))
    return min(requested, possible) if requested else possible


def is_loopback(host: str) -> bool:
    """Return True for an address of this machine that no other machine can use."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the settings, None without TLS.

    Raises:
        OSError, ssl.SSLError: certificate or key cannot be used.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    return context
