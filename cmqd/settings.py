"""Every setting of the server in one frozen table: meaning, default, range and the reason for it.

A setting has one name everywhere: ``max_connections`` in the TOML file, ``CMQD_MAX_CONNECTIONS`` in the environment,
``--max-connections`` as a flag. A later source wins: defaults, file, environment, flags. A setting with a name in
``_ms`` or ``_bytes`` also takes a unit (``30s``, ``1GiB``). Values are checked once, here; code that receives a
``Settings`` may rely on it. Limits of the service itself, which no setting may loosen, are in ``cmqd.core.limits``;
limits of the wire are in ``cmqd_protocol``.
"""

import dataclasses
import difflib
import enum
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cmqd.log.values import Durability, Redundancy
from cmqd_logs.levels import LogFormat, LogLevel
from cmqd_protocol.limits import (
    AUTHENTICATION_TIMEOUT_MS,
    DEFAULT_HEARTBEAT_MS,
    DEFAULT_MAX_FRAME_BYTES,
    DEFAULT_MAX_WAITING_REQUESTS,
    MAX_HEARTBEAT_MS,
    MAX_MAX_FRAME_BYTES,
    MIN_HEARTBEAT_MS,
    MIN_MAX_FRAME_BYTES,
)
from cmqd_types.shards import MAX_SHARD
from cmqd_types.units import DURATION, SIZE, Unit

_T = TypeVar("_T")

ENVIRONMENT_PREFIX = "CMQD_"
HIDDEN = "..."
"""Stands for the value of an unknown setting in its refusal."""
DEFAULT_PORT = 5680
DEFAULT_HTTP_PORT = 5681
DEFAULT_CMQ_TCP_PORT = 5682

LEAST_MEMORY_BUDGET_BYTES = 128 * 1024 * 1024

_KIB = 1024
_MIB = 1024 * 1024


class SettingError(ValueError):
    """A setting is unknown, of the wrong type or out of range; the server does not start.

    Attributes: ``name`` of the setting, ``value`` as given, ``allowed`` in words, and ``source`` of the value.
    """

    def __init__(self, name: str, value: object, allowed: str, source: str) -> None:
        super().__init__(f"{source}: {name} = {value!r} is not allowed: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed
        self.source = source


class Origin(NamedTuple):
    """The source of the value of a setting."""

    kind: str
    """``default``, ``file``, ``environment``, ``flag``, or ``program``: given by the code that made the settings."""
    place: str
    """Path of the file, name of the variable or the flag; empty for other kinds."""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}".rstrip()


def _setting(default: _T, section: str, text: str, *, low: int | None = None, high: int | None = None) -> _T:
    """Make a field of ``Settings``; typed as its default so that checkers see a plain dataclass."""
    field: Any = dataclasses.field(
        default=default, metadata={"section": section, "text": text, "low": low, "high": high}
    )
    return field


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective settings of a server; see the module. Durations are milliseconds, sizes are bytes."""

    # ------------------------------------------------------------ broker

    data: Path = _setting(
        Path("data"),
        "broker",
        "data folder: log, accounts and keys; created at the first start, used by one broker at a time",
    )
    # A pair on one machine shares a file, so that a command finds both brokers, whichever leads.
    context_file: Path | None = _setting(
        None,
        "broker",
        "file for address and key of the administrator, as cmq reads them; none: admin.context.toml in the data "
        "folder. With redundancy each broker writes the addresses of both brokers, and they may share the file",
    )
    region: str = _setting(
        "local", "broker", "name of the region that this broker serves; a client can refuse any other region"
    )
    durability: Durability = _setting(
        Durability.FSYNC,
        "broker",
        "fsync: an answer survives power loss; os: an answer survives a crash of the broker only",
    )
    redundancy: Redundancy = _setting(
        Redundancy.NONE,
        "broker",
        "none: the data folder has the log; postgresql: a PostgreSQL primary and its synchronous standby have the log, "
        "and a second broker with the same engine_url is the standby",
    )
    engine_url: str = _setting(
        "", "broker", "with redundancy: URL of the PostgreSQL servers, postgresql://USER:PASSWORD@HOST1,HOST2/DATABASE"
    )
    ephemeral: bool = _setting(
        False, "broker", "keep messages in memory only; accounts and keys stay in the data folder"
    )
    accept_loss: bool = _setting(False, "broker", "start with a damaged log: damaged parts are set aside and reported")
    # Readers of the log (Spark) may be another user; the keys in accounts.json are for the server's user alone.
    group_readable: bool = _setting(
        False, "broker", "let the group of the data folder read the log: new folders get files of mode 0640, not 0600"
    )
    adopt_wall_clock: bool = _setting(
        False, "broker", "set broker time to the wall clock at the start if they differ by more than a minute"
    )

    # ------------------------------------------------------------ network

    # Loopback, so that a first start offers no port to the network before the operator decides that it should.
    listen: str = _setting(
        f"127.0.0.1:{DEFAULT_PORT}", "network", "address and port; port 0 picks a free one, [::1]:5680 for IPv6"
    )
    http: str = _setting(
        "",
        "network",
        "address and port of an HTTP gateway that the broker runs as a child process, HTTPS if TLS is on; none: no "
        "gateway. Needs the extra gateway",
    )
    http_processes: int = _setting(
        1,
        "network",
        "processes of the gateway of http, with limits and a memory of repeats in common; more than 1 need Linux",
        low=1,
        high=64,
    )
    cmq_tcp: str = _setting(
        "",
        "network",
        "address and port for CMQ's TCP protocol, which the gateway of http serves without TLS; none: not served",
    )
    # The gateway's own settings stand in a file of their own, because the broker knows neither their names nor their
    # ranges: the gateway checks them.
    http_config: Path | None = _setting(
        None, "network", "TOML file with further settings of the gateway, named as the flags of cmqd-gateway"
    )
    advertise: str = _setting(
        "",
        "network",
        "host or host:port that the broker reports to clients as its address; none: the host of listen, "
        "or the name of the machine",
    )
    shard: int = _setting(
        0,
        "network",
        "number of the shard that this broker serves, the upper 12 bits of its message ids; never changes for a data "
        "folder with messages",
        low=0,
        high=MAX_SHARD,
    )
    tls_certificate: Path | None = _setting(
        None, "network", "PEM file with the certificate chain; together with tls_key, the certificate turns TLS on"
    )
    tls_key: Path | None = _setting(None, "network", "PEM file with the private key of tls_certificate")
    # The least that the wire allows fits every legal request and reply of messages; more leaves room for long lists.
    max_frame_bytes: int = _setting(
        DEFAULT_MAX_FRAME_BYTES,
        "network",
        "largest frame that the server proposes",
        low=MIN_MAX_FRAME_BYTES,
        high=MAX_MAX_FRAME_BYTES,
    )
    # Two silent periods end a connection, so a vanished peer is noticed within a minute; half a period between frames
    # keeps usual NAT tables awake.
    heartbeat_ms: int = _setting(
        DEFAULT_HEARTBEAT_MS,
        "network",
        "interval of heartbeats that the server proposes; a connection that is silent for two intervals is closed",
        low=MIN_HEARTBEAT_MS,
        high=MAX_HEARTBEAT_MS,
    )
    authentication_timeout_ms: int = _setting(
        AUTHENTICATION_TIMEOUT_MS,
        "network",
        "time limit from connecting to the end of the log-in",
        low=100,
        high=AUTHENTICATION_TIMEOUT_MS,
    )
    ready_file: Path | None = _setting(
        None,
        "network",
        "file for one JSON line (host, port, pid, ...) that is written when the server accepts connections",
    )

    # ------------------------------------------------------------ limits of use

    max_connections: int = _setting(
        0, "limits", "connections in total; 0 = as many as the descriptors of the process allow", low=0, high=10_000_000
    )
    max_connections_per_account: int = _setting(
        0, "limits", "connections of one account; 0 = no limit", low=0, high=10_000_000
    )
    max_waiting_receives_per_account: int = _setting(
        0, "limits", "waiting receives (long polls) of one account; 0 = no limit", low=0, high=100_000_000
    )
    max_requests_per_second_per_account: int = _setting(
        0, "limits", "requests per second of one account, with a burst of one second; 0 = no limit",
        low=0, high=100_000_000,
    )  # fmt: skip
    # Waiting receives count too, so the default is far above useful pipelining (16 to 64).
    max_requests_per_connection: int = _setting(
        DEFAULT_MAX_WAITING_REQUESTS,
        "limits",
        "unanswered requests on one connection; further requests are refused as too_many_requests",
        low=1,
        high=1_000_000,
    )
    max_queues_per_account: int = _setting(10_000, "limits", "queues of one account", low=1, high=1_000_000)
    max_topics_per_account: int = _setting(10_000, "limits", "topics of one account", low=1, high=1_000_000)
    max_in_flight_per_queue: int = _setting(
        1_000_000, "limits",
        "messages in flight in one queue (about 200 bytes of memory each); further receives are refused as "
        "too_many_in_flight", low=1, high=10_000_000,
    )  # fmt: skip

    # CMQ's limit by default. The retention of a queue is a limit of its own, so 15 days is as long as a delay can be.
    max_delay_ms: int = _setting(
        3_600_000, "limits",
        "longest delay of a send; a delay must also be shorter than the retention of its queue; CMQ allows one hour",
        low=3_600_000, high=15 * 86_400_000,
    )  # fmt: skip

    # ------------------------------------------------------------ pushes to URLs

    push_timeout_ms: int = _setting(
        15_000, "pushes", "time limit of a push, from its start to its answer; a push without an answer has failed",
        low=1_000, high=60_000,
    )  # fmt: skip
    # A subscriber chooses the address that the broker connects to: it must not reach the broker's private network.
    push_allow_private: bool = _setting(
        False, "pushes", "allow pushes to addresses of private networks (10.0.0.0/8, fc00::/7 and similar)"
    )
    push_allow_loopback: bool = _setting(False, "pushes", "allow pushes to the broker's own machine (127.0.0.0/8, ::1)")
    push_user_agent: str = _setting(
        "", "pushes", "User-Agent of pushes, up to 256 printable ASCII characters; none: cmqd/ and the version"
    )
    max_pushes_per_endpoint: int = _setting(16, "pushes", "concurrent pushes to one endpoint", low=1, high=1_000)
    # A connection and a task per push, some 30 KiB with a small body.
    max_pushes: int = _setting(4_096, "pushes", "concurrent pushes in total", low=1, high=65_536)

    # ------------------------------------------------------------ memory

    memory_budget_bytes: int = _setting(
        0, "memory", "memory for unfinished frames, unread replies, sessions, dedup ids and schedules of clients, at "
        "least 128 MiB; 0 = a quarter of the memory of the machine or container; an account may use a quarter of "
        "the budget", low=0, high=1 << 50,
    )  # fmt: skip
    # Some 100 ms of the fastest measured writing: deep enough for a commit to run while the next commit fills.
    busy_pending_bytes: int = _setting(
        64 * _MIB, "memory", "bytes waiting for the disk at which sends are refused as busy",
        low=64 * _KIB, high=1 << 40,
    )  # fmt: skip
    busy_pending_records: int = _setting(
        65_536, "memory", "records waiting for the disk at which sends are refused as busy", low=64, high=1 << 30
    )
    # Pausing stops deletes and heartbeats too, so it comes only well after the sends were refused.
    pause_pending_bytes: int = _setting(
        256 * _MIB, "memory", "bytes waiting for the disk at which the server stops reading from clients",
        low=64 * _KIB, high=1 << 40,
    )  # fmt: skip
    pause_pending_records: int = _setting(
        262_144, "memory", "records waiting for the disk at which the server stops reading from clients",
        low=64, high=1 << 30,
    )  # fmt: skip
    # A full reply of receive fits; further messages for a slow reader wait in the queue, not in a buffer.
    slow_reader_bytes: int = _setting(
        _MIB, "memory", "unread bytes of a connection at which the server stops reading its requests (any number, if "
        "all bytes are received messages)",
        low=4 * _KIB, high=1 << 30,
    )  # fmt: skip
    max_unread_bytes: int = _setting(
        64 * _MIB, "memory", "unread bytes at which the server closes the connection", low=64 * _KIB, high=1 << 32
    )
    max_unread_receives: int = _setting(
        64, "memory",
        "unread replies with messages on one connection (about 1 MiB each at most); further receives wait",
        low=1, high=4_096,
    )  # fmt: skip

    # ------------------------------------------------------------ disk

    # Sealing is 120 ms of work at this size, and a folder of 10 million small messages is some 50 files.
    segment_bytes: int = _setting(
        128 * _MIB, "disk", "size at which a segment of the log is retired and the next segment begins",
        low=_MIB, high=1 << 34,
    )  # fmt: skip
    segment_age_ms: int = _setting(
        3_600_000, "disk", "age at which a segment with rows is retired", low=1_000, high=30 * 86_400_000
    )
    # Counted from the last row, so that a segment is kept whole and no row is gone before its time.
    keep_history_ms: int = _setting(
        0, "disk", "time for which a segment without needed messages is kept after its last row, for replay and "
        "other readers of the log; 0 = not kept",
        low=0, high=3_650 * 86_400_000,
    )  # fmt: skip
    # A full disk refuses deletes too, so sends must stop while there is room for deletes; the storage adds the space
    # that seals in progress and deletes of all messages would take.
    min_free_bytes: int = _setting(
        64 * _MIB, "disk",
        "free bytes of the disk, beside the space for seals and deletes, below which sends are refused; "
        "receives and deletes continue",
        low=0, high=1 << 60,
    )  # fmt: skip

    # Longer than any commit on a disk that works, shorter than the patience of most callers.
    storage_patience_ms: int = _setting(
        10_000, "disk",
        "time after which a request that waits for the disk is answered outcome_unknown, and new requests "
        "are refused until the disk responds",
        low=100, high=600_000,
    )  # fmt: skip

    # ------------------------------------------------------------ process

    drain_timeout_ms: int = _setting(
        5_000, "process", "time limit from SIGTERM to the end of the process", low=500, high=600_000
    )
    log_format: LogFormat = _setting(LogFormat.CONSOLE, "process", "log lines as key=value or as JSON objects")
    log_level: LogLevel = _setting(LogLevel.INFO, "process", "lowest severity of log lines that are written")

    # ------------------------------------------------------------ not settings

    origins: Mapping[str, Origin] = dataclasses.field(default_factory=dict[str, Origin], compare=False, repr=False)
    """Origins of the values that ``load`` read, by name."""

    @property
    def is_replicated(self) -> bool:
        """True if an engine has the log."""
        return self.redundancy is not Redundancy.NONE

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port of ``listen``."""
        return parse_address(self.listen)

    @property
    def http_address(self) -> str:
        """Return ``http`` as ``host:port``, empty without a gateway."""
        return _printed_address(self.http, DEFAULT_HTTP_PORT)

    @property
    def cmq_tcp_address(self) -> str:
        """Return ``cmq_tcp`` as ``host:port``, empty if the gateway does not serve CMQ's TCP protocol."""
        return _printed_address(self.cmq_tcp, DEFAULT_CMQ_TCP_PORT)

    @property
    def uses_tls(self) -> bool:
        """True if clients connect with TLS."""
        return self.tls_certificate is not None

    @property
    def durability_text(self) -> str:
        """Return the meaning of an answer, as logs and status name it."""
        if self.ephemeral:
            return "none (ephemeral)"
        return "replicated" if self.is_replicated else str(self.durability)

    def origin_of(self, name: str) -> Origin:
        """Return the origin of the value of a setting."""
        origin = self.origins.get(name)
        if origin is not None:
            return origin
        return Origin("default" if getattr(self, name) == SETTINGS[name].default else "program", "")

    def as_table(self) -> dict[str, str | int | bool | None]:
        """Return every setting by name, in plain values; passwords in ``engine_url`` are hidden."""
        table: dict[str, str | int | bool | None] = {}
        for name in SETTINGS:
            value: object = getattr(self, name)
            table[name] = value if value is None or isinstance(value, bool | int) else str(value)
        table["engine_url"] = _without_passwords(self.engine_url)
        return table


@dataclasses.dataclass(frozen=True, slots=True)
class SettingInfo:
    """The description of a setting for the help, ``cmqd config`` and the documentation."""

    name: str
    section: str
    text: str
    kind: "type[Any]"
    """``bool``, ``int``, ``str``, ``Path`` or an enum."""
    default: object
    low: int | None
    high: int | None

    @property
    def flag(self) -> str:
        """Name of the flag of ``cmqd serve``."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Name of the variable of the environment."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def unit(self) -> Unit | None:
        """The units of a number, by the end of its name."""
        if self.kind is not int:
            return None
        return DURATION if self.name.endswith("_ms") else SIZE if self.name.endswith("_bytes") else None

    @property
    def default_text(self) -> str:
        """Return the default in a readable form."""
        if self.unit is not None and isinstance(self.default, int):
            return self.unit.format(self.default)
        return str(self.default)

    @property
    def allowed(self) -> str:
        """Return the allowed values, in words."""
        if self.kind is bool:
            return "true or false"
        if self.kind is int:
            text = f"a whole number from {self.low} to {self.high}"
            unit = self.unit
            if unit is None or self.low is None or self.high is None:
                return text
            return (
                f"{text} ({unit.plain}), or a number with {unit.named}, from {unit.format(self.low)} to"
                f" {unit.format(self.high)}"
            )
        if issubclass(self.kind, enum.StrEnum):
            return " or ".join(str(member) for member in self.kind)
        return "a path" if self.kind is Path else "text"


def _describe() -> dict[str, SettingInfo]:
    hints = typing.get_type_hints(Settings)
    infos: dict[str, SettingInfo] = {}
    for field in dataclasses.fields(Settings):
        if not field.metadata:
            continue
        hint: Any = hints[field.name]
        kind: type[Any] = typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
        infos[field.name] = SettingInfo(name=field.name, kind=kind, default=field.default, **field.metadata)
    return infos


SETTINGS = _describe()
"""Every setting by name, in the order of ``Settings``."""


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[host]:port``; a lone host gets the default port.

    Raises ValueError with the reason.
    """
    if text.startswith("["):
        host, closed, end = text[1:].partition("]")
        if not closed or (end and not end.startswith(":")):
            raise ValueError("an IPv6 address stands in brackets: [::1]:5680")
        port_text = end[1:]
    elif text.count(":") > 1:
        raise ValueError("an IPv6 address stands in brackets: [::1]:5680")
    else:
        host, _, port_text = text.partition(":")
    if not host:
        raise ValueError("the host is missing: host:port")
    if not port_text:
        return host, default_port
    if not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65_535:
        raise ValueError("the port is a whole number from 0 to 65535")
    return host, int(port_text)


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """Return the settings of all sources together, checked.

    Args:
        file: TOML file with settings by name, each above all tables or in the table of its section (``[limits]
            max_connections = 5``).
        environment: usually ``os.environ``; a variable with the prefix that names no setting is refused, unless it is
            listed in ``ignored_variables``.
        flags: by setting name; ``None`` = not given.

    Raises:
        SettingError: with the setting, the value, the allowed values and the source.
    """
    values: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    for name, value in (_read_file(file) if file is not None else {}).items():
        origins[name] = Origin("file", str(file))
        values[name] = _convert(SETTINGS[name], value, str(origins[name]))
    variables = os.environ if environment is None else environment
    _refuse_unknown(variables)
    for name, info in SETTINGS.items():
        text = variables.get(info.variable)
        if text is not None:
            origins[name] = Origin("environment", info.variable)
            values[name] = _convert(info, text, str(origins[name]))
    for name, value in (flags or {}).items():
        if value is not None:
            origins[name] = Origin("flag", SETTINGS[name].flag)
            values[name] = _convert(SETTINGS[name], value, str(origins[name]))
    settings = Settings(**typing.cast("dict[str, Any]", values), origins=origins)
    _check_together(settings)
    return settings


# A service named cmqd puts these variables into the environment of every container beside it.
_OF_PLATFORMS = re.compile(r"CMQD_(SERVICE_.*|PORT|PORT_.*)")


def ignored_variables(environment: Mapping[str, str]) -> list[str]:
    """List the variables with the prefix that container platforms make for a service of this name."""
    return sorted(name for name in environment if _OF_PLATFORMS.fullmatch(name))


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    names = {info.variable for info in SETTINGS.values()}
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in names and not _OF_PLATFORMS.fullmatch(name):
            raise _unknown(name, names, "environment")


def _unknown(name: str, names: Iterable[str], source: str) -> SettingError:
    # The value of an unknown name may be a secret (a URL of a client with its key), and the error goes to the log.
    near = difflib.get_close_matches(name.rpartition(".")[2], names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return SettingError(name, HIDDEN, f"the server has no setting of this name{hint}", source)


def _read_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise SettingError("config", str(path), f"cannot be read ({error.strerror})", "flag --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError("config", str(path), f"is not TOML ({error})", "flag --config") from error
    source = f"file {path}"
    sections = {info.section for info in SETTINGS.values()}
    values: dict[str, object] = {}
    for key, value in typing.cast("dict[str, object]", document).items():
        if not isinstance(value, dict):
            if key in sections:
                raise SettingError(key, value, f"{key} is a table: [{key}]", source)
            _put(values, key, value, key, source)
        elif key not in sections:
            near = difflib.get_close_matches(key, sections, n=1)
            hint = f"; did you mean [{near[0]}]?" if near else f"; tables are {', '.join(sorted(sections))}"
            raise SettingError(key, typing.cast("object", value), f"there is no table [{key}]{hint}", source)
        else:
            for name, inner in typing.cast("dict[str, object]", value).items():
                if name in SETTINGS and (section := SETTINGS[name].section) != key:
                    allowed = f"{name} belongs to [{section}], or above all tables"
                    raise SettingError(f"{key}.{name}", inner, allowed, source)
                _put(values, name, inner, f"{key}.{name}", source)
    return values


def _put(values: dict[str, object], name: str, value: object, path: str, source: str) -> None:
    if name not in SETTINGS:
        raise _unknown(path, SETTINGS, source)
    if name in values:
        raise SettingError(path, value, "it is given twice", source)
    values[name] = value


_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _convert(info: SettingInfo, value: object, source: str) -> object:
    """Return the value in the type of the setting, within its range."""
    refused = SettingError(info.name, value, info.allowed, source)
    if info.kind is bool:
        word = value if isinstance(value, bool) else _WORDS.get(value.lower()) if isinstance(value, str) else None
        if word is None:
            raise refused
        return word
    if info.kind is int:
        number = _parse_number(info, value) if isinstance(value, str) else value
        if not isinstance(number, int) or isinstance(number, bool):
            raise refused
        if (info.low is not None and number < info.low) or (info.high is not None and number > info.high):
            raise refused
        return number
    if not isinstance(value, str | Path):
        raise refused
    if issubclass(info.kind, enum.StrEnum):
        try:
            return info.kind(str(value))
        except ValueError:
            raise refused from None
    if info.kind is Path:
        if not str(value):
            if info.default is None:
                return None
            raise refused
        return Path(value)
    return str(value)


def _parse_number(info: SettingInfo, text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None if info.unit is None else info.unit.parse(text)


def _without_passwords(url: str) -> str:
    """Hide the passwords of libpq's URL or ``name=value`` pairs. A password may hold ``:`` and ``@``, and by mistake
    ``/`` and ``?``, with which the URL is none.
    """
    url = re.sub(r"^(\w+://[^:/?@]*:).*(?=@)", rf"\g<1>{HIDDEN}", url)
    return re.sub(r"(password\s*=\s*)('(?:\\.|[^'\\])*'|[^&\s]*)", rf"\g<1>{HIDDEN}", url)


def _printed_address(text: str, default_port: int) -> str:
    """Return an address as ``host:port``; an empty text stays empty."""
    if not text:
        return ""
    host, port = parse_address(text, default_port)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_together(settings: Settings) -> None:
    def refuse(name: str, allowed: str) -> SettingError:
        return SettingError(name, settings.as_table()[name], allowed, str(settings.origin_of(name)))

    try:
        parse_address(settings.listen)
    except ValueError as error:
        raise refuse("listen", str(error)) from error
    if settings.http:
        try:
            parse_address(settings.http, DEFAULT_HTTP_PORT)
        except ValueError as error:
            raise refuse("http", str(error)) from error
    elif settings.http_config is not None:
        raise refuse("http_config", "only together with http")
    elif settings.http_processes > 1:
        raise refuse("http_processes", "only together with http")
    if settings.cmq_tcp:
        if not settings.http:
            raise refuse("cmq_tcp", "only together with http")
        try:
            parse_address(settings.cmq_tcp, DEFAULT_CMQ_TCP_PORT)
        except ValueError as error:
            raise refuse("cmq_tcp", str(error)) from error
    if settings.advertise:
        try:
            _, port = parse_address(settings.advertise)
        except ValueError as error:
            raise refuse("advertise", str(error)) from error
        if not port:
            raise refuse("advertise", "the port is 1 to 65535")
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", settings.region) is None:
        raise refuse("region", "1 to 64 ASCII letters, digits, - and _")
    # A line break would add headers of its own to each push.
    if re.fullmatch(r"[ -~]{0,256}", settings.push_user_agent) is None:
        raise refuse("push_user_agent", "up to 256 printable ASCII characters")
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_certificate"
        raise refuse(missing, "tls_certificate and tls_key come together")
    if 0 < settings.memory_budget_bytes < LEAST_MEMORY_BUDGET_BYTES:
        raise refuse("memory_budget_bytes", f"0, or at least {LEAST_MEMORY_BUDGET_BYTES}")
    if settings.is_replicated and not settings.engine_url:
        raise refuse("engine_url", f"needed with redundancy = {settings.redundancy}")
    if settings.engine_url and not settings.is_replicated:
        raise refuse("engine_url", "only with redundancy = postgresql")
    if settings.is_replicated and (settings.ephemeral or settings.accept_loss):
        raise refuse("ephemeral" if settings.ephemeral else "accept_loss", "false with redundancy")
    if settings.pause_pending_bytes < settings.busy_pending_bytes:
        raise refuse("pause_pending_bytes", f"at least busy_pending_bytes ({settings.busy_pending_bytes})")
    if settings.pause_pending_records < settings.busy_pending_records:
        raise refuse("pause_pending_records", f"at least busy_pending_records ({settings.busy_pending_records})")
    if settings.max_unread_bytes < settings.slow_reader_bytes:
        raise refuse("max_unread_bytes", f"at least slow_reader_bytes ({settings.slow_reader_bytes})")
