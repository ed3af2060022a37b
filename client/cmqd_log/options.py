"""The options of the source, checked once; Spark gives them as text, with names in any case. Pure.

| option | means | default |
| --- | --- | --- |
| ``path`` | the data folder (local, shared, or an fsspec URL), also as ``.load(path)`` | must be given |
| ``queue``, ``topic`` | names, separated by commas | all queues and topics |
| ``queueId`` | the id of a queue, or of a topic for the messages of the topic itself | |
| ``queuePattern`` | a regular expression that the whole name of a queue matches | |
| ``account`` | the account to which queues and topics belong | any |
| ``tags`` | separated by commas: messages that were published with any of these tags | any |
| ``routingKey`` | a binding key: messages that were published with a matching routing key | any |
| ``startingLsn``, ``endingLsn`` | first and last row, both included; ``earliest`` and ``latest`` | all |
| ``startingTimestamp``, ``endingTimestamp`` | sent at or after the first, before the second; with a zone | all |
| ``table`` | ``log``, or ``receives``: a row for each receive of a message | ``log`` |
| ``mode`` | ``events``, ``all``, ``backlog``, ``consumed``, ``dead`` | ``events`` |
| ``includeActive`` | also unsealed rows; needs the folder of the same machine | ``false`` |
| ``clients`` | of a mode: fill ``received_by`` and ``left_by``, which needs all rows | ``false`` |
| ``minPartitions`` | segments are split into at least this number of parts | 1 |
| ``allowNewSelection`` | of a stream: go on under a checkpoint of another selection | ``false`` |
| ``waitForRows`` | of a stream: seconds to wait for rows that a copy lacks | 0 |
| ``failOnDataLoss`` | fail if requested rows are gone | ``true`` |
| ``batchRows`` | messages in an Arrow batch, about | 8192 |
| ``storageOptions`` | of a URL: a JSON object of arguments for its fsspec file system | |
| ``cacheFolder`` | where files of a URL stay for other reads | files go with the read |
| ``maxMessagesPerTrigger``, ``maxBytesPerTrigger`` | of a stream: limit of a batch, in messages or bytes | none |
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from cmqd_log.errors import HIDDEN, OptionError
from cmqd_log.schema import Table

EARLIEST = "earliest"
LATEST = "latest"
LAST_LSN = (1 << 63) - 1
DEFAULT_BATCH_ROWS = 8192
MAX_BATCH_ROWS = 1 << 20
MAX_PARTITIONS = 100_000
MAX_WAIT_S = 3_600


class Mode(StrEnum):
    """Meaning of a row of the DataFrame; see :mod:`cmqd_reading.states` for all but the first."""

    EVENTS = "events"
    """A message that was stored."""
    ALL = "all"
    """A message that the log still holds, with its state."""
    BACKLOG = "backlog"
    CONSUMED = "consumed"
    DEAD = "dead"


@dataclass(frozen=True)
class Options:
    """The checked options; the module lists their meaning."""

    path: str
    queues: tuple[str, ...] = ()
    queue_pattern: str = ""
    topics: tuple[str, ...] = ()
    queue_id: int = 0
    """0 = any."""
    account: str = ""
    tags: tuple[str, ...] = ()
    starting_lsn: int | str | None = None
    """A row, ``earliest`` or ``latest``; None = not given."""
    ending_lsn: int = LAST_LSN
    starting_ms: int | None = None
    ending_ms: int | None = None
    mode: Mode = Mode.EVENTS
    table: Table = Table.LOG
    include_active: bool = False
    clients: bool = False
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    allow_new_selection: bool = False
    wait_for_rows: int = 0
    """Seconds."""
    batch_rows: int = DEFAULT_BATCH_ROWS
    cache_folder: str = ""
    max_messages: int = 0
    """Limit of messages in a batch of a stream; 0 = no limit. The limit of bytes is alike."""
    max_bytes: int = 0
    routing_key: str = ""
    """A binding key; empty = any."""
    storage: str = field(default="", repr=False)
    """``storageOptions`` as JSON; it may hold keys."""
    only_queues: frozenset[str] | None = None
    """Names that the pushed-down filters let through; None = all. ``only_accounts`` is alike."""
    only_accounts: frozenset[str] | None = None
    only_lsns: tuple[int, int] = (0, LAST_LSN)
    """First and last row that pushed-down filters let through. The range limits the messages that are shown, not the
    row as of which their states are told: else the same message would have another state with push-down on."""

    @property
    def is_of_queues(self) -> bool:
        """True if a row is about a message in a queue: the messages of topics themselves are not read."""
        return self.mode is not Mode.EVENTS or self.table is Table.RECEIVES


def parse_options(given: Mapping[str, str]) -> Options:
    """Check the options and return them in typed form.

    Raises:
        OptionError: an option is unknown, missing or out of range, or two options contradict each other.
    """
    values = {name.lower(): value.strip() for name, value in given.items()}
    known = {name.lower() for name in _NAMES}
    for name in values:
        if name not in known:
            # The value is hidden, because it may be the URL of the sink, with a key.
            raise OptionError(
                name, HIDDEN, f"the source has no option of this name; its options are {', '.join(_NAMES)}"
            )
    path = values.get("path", "")
    if not path:
        raise OptionError("path", None, "give the data folder of a broker, or the URL of a copy")
    chosen = [name for name in ("queue", "queueId", "queuePattern", "topic") if name.lower() in values]
    if len(chosen) > 1:
        raise OptionError(chosen[1], values[chosen[1].lower()], f"{chosen[0]!r} is given too; give one of the two")
    for edge in ("starting", "ending"):
        if f"{edge}lsn" in values and f"{edge}timestamp" in values:
            raise OptionError(
                f"{edge}Timestamp", values[f"{edge}timestamp"], f"'{edge}Lsn' is given too; give one of the two"
            )
    options = Options(
        path=path,
        queues=_names(values, "queue"),
        queue_pattern=_pattern(values),
        topics=_names(values, "topic"),
        queue_id=whole(values, "queueId", 0, 1, LAST_LSN),
        account=values.get("account", ""),
        tags=_names(values, "tags"),
        starting_lsn=_starting_lsn(values),
        ending_lsn=LAST_LSN
        if values.get("endinglsn", LATEST) == LATEST
        else whole(values, "endingLsn", 0, 0, LAST_LSN, LATEST),
        starting_ms=_time(values, "startingTimestamp"),
        ending_ms=_time(values, "endingTimestamp"),
        mode=_mode(values),
        table=table_of(values),
        include_active=flag(values, "includeActive", False),
        clients=flag(values, "clients", False),
        min_partitions=whole(values, "minPartitions", 1, 1, MAX_PARTITIONS),
        fail_on_data_loss=flag(values, "failOnDataLoss", True),
        allow_new_selection=flag(values, "allowNewSelection", False),
        wait_for_rows=whole(values, "waitForRows", 0, 0, MAX_WAIT_S),
        batch_rows=whole(values, "batchRows", DEFAULT_BATCH_ROWS, 1, MAX_BATCH_ROWS),
        cache_folder=values.get("cachefolder", ""),
        max_messages=whole(values, "maxMessagesPerTrigger", 0, 1, LAST_LSN),
        max_bytes=whole(values, "maxBytesPerTrigger", 0, 1, LAST_LSN),
        routing_key=_something(values, "routingKey"),
        storage=_storage(values, path),
    )
    if options.tags and options.routing_key:
        raise OptionError(
            "routingKey", options.routing_key, "'tags' is given too; no message has both tags and a routing key"
        )
    _check_range(options, values)
    if options.table is Table.RECEIVES:
        for name in ("mode", "topic", "tags", "routingKey", "statesFile"):
            if name.lower() in values:
                raise OptionError(
                    name, values[name.lower()], "table receives does not have this option; leave the option out"
                )
    if options.topics and options.mode is not Mode.EVENTS:
        raise OptionError(
            "topic", values["topic"], f"mode {options.mode} reads messages of queues; topics are read in mode events"
        )
    return options


_NAMES = (
    "path",
    "queue",
    "queueId",
    "queuePattern",
    "topic",
    "account",
    "tags",
    "routingKey",
    "startingLsn",
    "endingLsn",
    "startingTimestamp",
    "endingTimestamp",
    "table",
    "mode",
    "includeActive",
    "clients",
    "minPartitions",
    "failOnDataLoss",
    "allowNewSelection",
    "waitForRows",
    "batchRows",
    "cacheFolder",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "storageOptions",
)


def _check_range(options: Options, values: Mapping[str, str]) -> None:
    first = options.starting_lsn
    if isinstance(first, int) and first > options.ending_lsn:
        raise OptionError("endingLsn", values["endinglsn"], f"the range is empty, because 'startingLsn' is {first}")
    if options.starting_ms is not None and options.ending_ms is not None and options.starting_ms > options.ending_ms:
        raise OptionError(
            "endingTimestamp", values["endingtimestamp"], "the range is empty, because 'startingTimestamp' is later"
        )


def _something(values: Mapping[str, str], option: str) -> str:
    text = values.get(option.lower())
    if text == "":
        raise OptionError(option, "", "give a value, or leave the option out")
    return text or ""


def _storage(values: Mapping[str, str], path: str) -> str:
    text = values.get("storageoptions")
    if text is None:
        return ""
    if not is_url(path):
        raise OptionError(
            "storageOptions", HIDDEN, "this folder is read in place; the option is for a URL that fsspec opens"
        )
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        # Without the decoder's reason, which may quote a key.
        raise OptionError("storageOptions", HIDDEN, 'give a JSON object, such as {"anon": true}') from None
    return text


def is_url(path: str) -> bool:
    """True if the path is a URL for fsspec; ``file:`` is the local disk."""
    return "://" in path and not path.startswith("file:")


def _names(values: Mapping[str, str], option: str) -> tuple[str, ...]:
    text = values.get(option.lower())
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise OptionError(option, text, "give names separated by commas; none may be empty")
    return names


def _pattern(values: Mapping[str, str]) -> str:
    text = values.get("queuepattern", "")
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError("queuePattern", text, f"the regular expression is invalid: {error}") from error
    if not text and "queuepattern" in values:
        raise OptionError("queuePattern", text, "give a regular expression, or leave the option out to read all queues")
    return text


def _mode(values: Mapping[str, str]) -> Mode:
    text = values.get("mode", Mode.EVENTS)
    try:
        return Mode(text.lower())
    except ValueError:
        raise OptionError("mode", text, f"give one of {', '.join(Mode)}") from None


def table_of(values: Mapping[str, str]) -> Table:
    """Return the option ``table``.

    Raises:
        OptionError: there is no table of this name.
    """
    text = values.get("table", Table.LOG)
    try:
        return Table(text.strip().lower())
    except ValueError:
        raise OptionError("table", text, f"give one of {', '.join(Table)}") from None


def flag(values: Mapping[str, str], option: str, default: bool) -> bool:
    """Return the value of an option that is true or false.

    Raises:
        OptionError: the value is neither.
    """
    text = values.get(option.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise OptionError(option, text, "give true or false")
    return text.lower() == "true"


def whole(values: Mapping[str, str], option: str, default: int, low: int, high: int, *words: str) -> int:
    """Return the integer value of an option; ``words`` are allowed in place of a number.

    Raises:
        OptionError: the value is not an integer, or out of range.
    """
    text = values.get(option.lower())
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        also = "".join(f", or {word}" for word in words)
        raise OptionError(option, text, f"give a whole number from {low} to {high}{also}")
    return int(text)


def _starting_lsn(values: Mapping[str, str]) -> int | str | None:
    text = values.get("startinglsn")
    if text is None or text in (EARLIEST, LATEST):
        return text
    return whole(values, "startingLsn", 0, 0, LAST_LSN, EARLIEST, LATEST)


def _time(values: Mapping[str, str], option: str) -> int | None:
    text = values.get(option.lower())
    if text is None:
        return None
    allowed = "give milliseconds since 1970, or a time with its zone, such as 2026-11-21T09:30:00Z"
    if text.isascii() and text.isdigit():
        if len(text) < 12:
            raise OptionError(option, text, f"{allowed}; the value looks like seconds")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(option, text, allowed) from None
    if moment.tzinfo is None:
        # UTC and the zone of a session are both likely, and hours of messages lie between the two.
        readings = moment.replace(tzinfo=UTC).isoformat(), moment.astimezone().isoformat()
        raise OptionError(
            option,
            text,
            f"the time names no zone; give {readings[0]}, the time in UTC, or {readings[1]}, the time in the zone of "
            "this machine",
        )
    # In integers, because a float of seconds is not exact to the millisecond.
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    milliseconds = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if milliseconds < 0:
        raise OptionError(option, text, allowed)
    return milliseconds
