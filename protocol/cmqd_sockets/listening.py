"""Preparations for listening: the limit of open files, and addresses of this machine."""

import resource
from ipaddress import IPv6Address, ip_address


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as allowed; return the limit. Each connection takes a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def is_loopback(host: str) -> bool:
    """Return True for an address of this machine that no other machine can use; False for a name."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
