"""Settings of the gateway in a frozen table: meaning, default and range; each setting is a flag of ``cmqd-gateway``."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from cyclopts import Group, Parameter, validators

from cmqd_gateway.http.request_bodies import large_bodies
from cmqd_logs.levels import LogFormat, LogLevel
from cmqd_sockets import listening

DEDUP_SECONDS: Final = 300
"""Time for which a broker remembers the dedup id of a send."""
MAX_VALID_SECONDS: Final = DEDUP_SECONDS - 20
"""Longest time for which a request may be valid, from its arrival when it is stamped ahead to its last repeat. The 20 s
are for the way of the repeat from the check of its Timestamp to the broker: the question for the key, the connection
and the request, of ``broker_patience_seconds`` each."""

_NETWORK = Group("Network", sort_key=1)
_LIMITS = Group("Limits", sort_key=2)
_CMQ = Group("CMQ's API 2.0", sort_key=3)
_API3 = Group("CMQ's API 3.0", sort_key=4)
_CMQ_TCP = Group("CMQ's TCP protocol", sort_key=5)
_MONITORING = Group("Monitoring", sort_key=6)
_LOGS = Group("Logs", sort_key=7)


def _range(group: Group, low: float, high: float, text: str) -> Parameter:
    return Parameter(group=group, validator=validators.Number(gte=low, lte=high), help=f"{text} ({low} to {high})")


def _text(group: Group, text: str) -> Parameter:
    return Parameter(group=group, help=text)


Seconds: TypeAlias = float


class SettingsError(ValueError):
    """Settings contradict each other, or a text is malformed; the gateway does not start."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The effective settings of a gateway; see the module."""

    listen: Annotated[str, _text(_NETWORK, "address and port for HTTP; port 0 picks a free port; '' = no HTTP")] = (
        "127.0.0.1:5681"
    )
    listen_https: Annotated[str, _text(_NETWORK, "address and port for HTTPS; '' = no HTTPS")] = ""
    tls_certificate: Annotated[
        Path | None, _text(_NETWORK, "PEM file with the certificate chain, for --listen-https")
    ] = None
    tls_key: Annotated[Path | None, _text(_NETWORK, "PEM file with the private key of --tls-certificate")] = None
    http_processes: Annotated[
        int,
        _range(
            _NETWORK,
            1,
            64,
            "processes that share the ports, the limits and the memory of repeats; more than 1 need Linux",
        ),
    ] = 1
    reuse_port: Annotated[
        bool,
        _text(
            _NETWORK,
            "let different gateways of this machine share the ports, with limits of their own; http_processes needs no"
            " switch",
        ),
    ] = False
    ready_file: Annotated[
        Path | None, _text(_NETWORK, "file for one JSON line (host, port, pid ...), written when the gateway listens")
    ] = None
    public_names: Annotated[
        tuple[str, ...],
        _text(_NETWORK, "names (host or host:port) under which clients know the gateway, beside the Host header"),
    ] = ()

    # A key has a connection for its requests, pipelined, and another for each 1,000 of its waiting receives: 1,000 keys
    # can poll at a time. The operating system allows many more connections.
    gateway_connections: Annotated[
        int,
        _range(
            _LIMITS,
            2,
            100_000,
            "connections to the broker, over all keys; waiting receives use up to half, transactions' checks a quarter",
        ),
    ] = 2_000
    key_idle_seconds: Annotated[
        Seconds, _range(_LIMITS, 1, 86_400, "time without requests after which the connection of a key is closed")
    ] = 60.0
    broker_patience_seconds: Annotated[
        Seconds, _range(_LIMITS, 0.1, 60, "time for a request to the broker, beyond the wait of a receive")
    ] = 5.0
    max_connections: Annotated[
        int, _range(_LIMITS, 1, 1_000_000, "open connections of HTTP and of CMQ's TCP protocol together")
    ] = 20_000
    # The pools of CMQ's SDKs keep an idle connection for up to 5 minutes. If the gateway closed the connection first, a
    # request could be under way at the same moment, and the SDK would report a network error.
    keep_alive_seconds: Annotated[
        Seconds, _range(_LIMITS, 1, 86_400, "time after which an idle HTTP connection is closed")
    ] = 600.0
    slow_client_seconds: Annotated[
        Seconds,
        _range(
            _LIMITS,
            0.1,
            3_600,
            "time for a TLS handshake, a request's head, its body, a frame, and for taking bytes of an answer",
        ),
    ] = 30.0
    max_request_bytes: Annotated[int, _range(_LIMITS, 65_536, 64 << 20, "body of a request, or frame")] = 4 << 20
    max_head_bytes: Annotated[int, _range(_LIMITS, 4_096, 1 << 20, "a line or field of a request's head")] = 16_384
    body_memory_bytes: Annotated[
        int,
        _range(_LIMITS, 4 << 20, 64 << 30, "bodies of all requests in progress; bodies over 64 KiB have 3/4 of it"),
    ] = 256 << 20
    max_requests_per_second_per_key: Annotated[
        int, _range(_LIMITS, 0, 10_000_000, "requests of a key, with a burst of one second; 0 = unlimited")
    ] = 0
    wrong_key_pause_seconds: Annotated[
        Seconds,
        _range(
            _LIMITS,
            0,
            60,
            "pause before the refusal of an unknown key, a wrong secret or signature, or a request that may be a copy",
        ),
    ] = 0.5

    # An SDK stamps a request before its connection is open, so the time behind includes waits of the client.
    timestamp_behind_seconds: Annotated[
        int, _range(_CMQ, 1, 86_400, "largest age of a request's Timestamp, by the gateway's clock")
    ] = 220
    timestamp_ahead_seconds: Annotated[
        int, _range(_CMQ, 0, 86_400, "largest time of a request's Timestamp ahead of the gateway's clock")
    ] = 60
    unsigned_at_values: Annotated[
        bool,
        _text(_CMQ, "accept bodies that begin with '@' and are not signed, as CMQ's Python and PHP SDKs send them"),
    ] = True

    api3_signed_action: Annotated[
        bool, _text(_API3, "refuse requests over HTTP that do not sign X-TC-Action; no SDK signs it")
    ] = False
    api3_retention: Annotated[
        bool, _text(_API3, "take MsgRetentionSeconds of queues for the retention; without, it is refused")
    ] = False

    listen_cmq_tcp: Annotated[
        str,
        _text(_CMQ_TCP, "address and port for CMQ's TCP protocol, which has no TLS; '' = not served"),
    ] = ""
    cmq_tcp_addresses: Annotated[
        tuple[str, ...],
        _text(
            _CMQ_TCP,
            "addresses (host:port) that a route query answers; none: the host of the request with the port of"
            " listen_cmq_tcp",
        ),
    ] = ()
    # A program's threads share a connection, each with a request; the receives of a listener of the SDK wait beside.
    cmq_tcp_requests: Annotated[
        int, _range(_CMQ_TCP, 1, 65_535, "requests in progress over a connection of CMQ's TCP protocol")
    ] = 4_096
    cmq_tcp_silence_seconds: Annotated[
        Seconds,
        _range(
            _CMQ_TCP,
            4,
            86_400,
            "time after which a connection of CMQ's TCP protocol without a byte is closed; the SDK sends every 3 s",
        ),
    ] = 60.0

    metrics_listen: Annotated[
        str, _text(_MONITORING, "address and port for /metrics alone; '' = on the listeners of the APIs")
    ] = ""
    metrics_key_file: Annotated[
        Path | None,
        _text(
            _MONITORING,
            "file of mode 0600 with a line SECRET_ID:SECRET_KEY, a key with the role read, for all requests of"
            " /metrics; needs metrics_listen; without the file a request needs a key of its own",
        ),
    ] = None
    metrics_top: Annotated[
        int, _range(_MONITORING, 0, 1_000, "most queues, topics and subscriptions with metrics of their own")
    ] = 100
    # Within a second: after this time a key without its former role reads no more figures.
    metrics_cache_seconds: Annotated[
        Seconds, _range(_MONITORING, 0, 60, "time for which requests share the figures of a key")
    ] = 1.0

    log_format: Annotated[LogFormat, _text(_LOGS, "form of the log lines")] = LogFormat.CONSOLE
    log_level: Annotated[LogLevel, _text(_LOGS, "the least severe line that is written")] = LogLevel.INFO

    def __post_init__(self) -> None:
        """Refuse contradictory settings.

        Raises:
            SettingsError: there is no listener, or several processes lack Linux or connections to the broker, or HTTPS
                lacks its files, or a limit contradicts another, or ``/metrics`` without a key has no listener of its
                own, or an address for CMQ's TCP protocol cannot be written in an answer.
        """
        if not self.listen and not self.listen_https:
            raise SettingsError("listen and listen_https are both empty; the gateway needs at least one address")
        for name in ("listen", "listen_https", "metrics_listen", "listen_cmq_tcp"):
            address = getattr(self, name)
            if address:
                split_address(name, address)
        for address in self.cmq_tcp_addresses:
            host, port = split_address("cmq_tcp_addresses", address)
            if ":" in host or not port:
                raise SettingsError(
                    f"cmq_tcp_addresses has {address!r}; it must be host:port, and no IPv6 address: programs split an"
                    " address of an answer at the first colon"
                )
        if self.http_processes > 1 and sys.platform != "linux":
            raise SettingsError(f"http_processes is {self.http_processes}; more than 1 process needs Linux")
        if self.gateway_connections < 2 * self.http_processes:
            raise SettingsError(
                f"gateway_connections is {self.gateway_connections}, but each of the {self.http_processes} processes of"
                " http_processes needs at least 2"
            )
        if self.cmq_tcp_addresses and not self.listen_cmq_tcp:
            raise SettingsError("cmq_tcp_addresses needs listen_cmq_tcp")
        if self.metrics_key_file is not None and not self.metrics_listen:
            raise SettingsError(
                "metrics_key_file needs metrics_listen: with a key of the gateway, all clients that reach the listener"
                " read /metrics without a key, and the listeners of the APIs may be public"
            )
        if bool(self.listen_https) != bool(self.tls_certificate and self.tls_key):
            raise SettingsError("listen_https, tls_certificate and tls_key must be given together")
        valid_seconds = self.timestamp_behind_seconds + self.timestamp_ahead_seconds
        if valid_seconds > MAX_VALID_SECONDS:
            raise SettingsError(
                f"timestamp_behind_seconds and timestamp_ahead_seconds are {valid_seconds} together; the limit is"
                f" {MAX_VALID_SECONDS}: the broker remembers a send for {DEDUP_SECONDS} s, and a captured request that"
                " is valid for longer could be stored a second time"
            )
        if self.max_request_bytes > large_bodies(self.body_memory_bytes):
            raise SettingsError(
                f"max_request_bytes is {self.max_request_bytes}, but large bodies may use 3/4 of body_memory_bytes,"
                f" {large_bodies(self.body_memory_bytes)} bytes in all"
            )


def split_address(name: str, address: str) -> tuple[str, int]:
    """Return host and port of an address of the setting ``name``.

    Raises:
        SettingsError: the address is no ``host:port``.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise SettingsError(f"{name} is {address!r}; it must be host:port, for IPv6 [address]:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Return True for an address of this machine that no other machine can use, and for the name ``localhost``."""
    return host == "localhost" or listening.is_loopback(host)


def shown(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from their defaults, for the log."""
    return {
        field.name: str(value) if isinstance(value, Path) else value
        for field in dataclasses.fields(settings)
        if (value := getattr(settings, field.name)) != field.default
    }
