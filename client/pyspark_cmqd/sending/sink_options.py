"""The options of the sink, checked once on the driver; Spark gives them as text, with names in any case.

| option | means | default |
| --- | --- | --- |
| ``url`` | the server: ``cmq://ID:KEY@host:port`` | the context |
| ``context``, ``contextFile`` | a context of ``cmq``, read on the driver | ``CMQ_URL``, else the current context |
| ``queue`` or ``topic`` | target of the rows; the queue or topic must exist | required |
| ``bodyColumn`` | binary or string | ``body`` |
| ``headersColumn`` | map of strings | ``headers``, if present |
| ``delayColumn`` | of a queue: seconds until a message is visible | ``delay``, if present |
| ``tagsColumn`` | of a topic: array of strings | ``tags``, if present |
| ``routingKeyColumn`` | of a topic: string | ``routing_key``, if present |
| ``dedupIdColumn`` | string or whole number: the row's own name, up to 64 bytes | ``dedup_id``, if present |
| ``writeId`` | of a batch: name of this write, the same for a repeat | a new name for every write |
| ``batchSize`` | most messages in a request | 256 |
| ``inFlight`` | requests of a task under way at once | 16 |
| ``ordered`` | rows of a partition are stored in their order, in spite of refusals and losses | ``false`` |
| ``uniqueDedupIds`` | with ``ordered``: no dedup id repeats, several requests may be under way | ``false`` |
| ``retries`` | repeats of a request, or of connecting | 10 |
| ``requestTimeout`` | seconds that an attempt may take | 10 |
| ``maxMessagesPerSecond`` | per task; the rates of parallel tasks add up | no limit |

``path`` and ``checkpointLocation`` are Spark's own business. Columns that no option names are left out.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cmqd_client.address import Address, parse_address
from cmqd_client.contexts import ContextError, default_path, load_contexts
from cmqd_log.errors import HIDDEN, OptionError
from cmqd_log.options import flag, whole
from cmqd_protocol.limits import MAX_BATCH

MAX_IN_FLIGHT = 256
MAX_RETRIES = 1_000
MAX_TIMEOUT_S = 3_600
MAX_RATE = 10_000_000
NO_TARGET = (
    "give the queue to send to, or 'topic' to publish. A log is not written, so INSERT INTO a table of a log fails; "
    'spark.sql("SELECT ...").write.format("cmqd").mode("append").option("queue", "NAME").save() sends the rows to a '
    "queue"
)
"""Also the answer to an INSERT INTO, for which Spark asks the source for a writer without options."""
MAX_WRITE_ID_CHARS = 32
"""Maximum length of a write id: the rest of the 64 bytes of a dedup id is for partition and row."""

_COLUMNS = {
    "bodyColumn": "body",
    "headersColumn": "headers",
    "delayColumn": "delay",
    "tagsColumn": "tags",
    "routingKeyColumn": "routing_key",
    "dedupIdColumn": "dedup_id",
}
_NAMES = (
    "url",
    "context",
    "contextFile",
    "queue",
    "topic",
    *_COLUMNS,
    "writeId",
    "batchSize",
    "inFlight",
    "ordered",
    "uniqueDedupIds",
    "retries",
    "requestTimeout",
    "maxMessagesPerSecond",
)
_OF_SPARK = frozenset({"path", "checkpointlocation"})


@dataclass(frozen=True)
class SinkOptions:
    """The checked options; the module lists their meaning.

    The driver reads files and environment variables, and the executors get this object pickled.
    """

    address: Address
    queue: str
    """Name of the queue; empty = the target is a topic."""
    topic: str
    columns: Mapping[str, str]
    """Column by role: ``body``, ``headers``, ``delay``, ``tags``, ``routing_key``, ``dedup_id``."""
    named: frozenset[str]
    """Roles with a named column, which must exist; the column of the body must always exist."""
    write_id: str = ""
    batch_size: int = MAX_BATCH
    in_flight: int = 16
    retries: int = 10
    request_timeout: float = 10.0
    max_rate: float = 0.0
    """Limit of messages a second; 0 = no limit."""
    ordered: bool = False
    unique_ids: bool = False
    """The rows' own dedup ids do not repeat."""

    @property
    def target(self) -> str:
        """The queue or topic, as text for a user."""
        return f"queue {self.queue!r}" if self.queue else f"topic {self.topic!r}"


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options and return them in typed form.

    Raises:
        OptionError: an option is unknown, missing or out of range, or two options contradict each other.
    """
    values = {name.lower(): value.strip() for name, value in given.items() if name.lower() not in _OF_SPARK}
    known = {name.lower() for name in _NAMES}
    for name in values:
        if name not in known:
            raise OptionError(name, HIDDEN, f"the sink has no option of this name; its options are {', '.join(_NAMES)}")
    for name in _NAMES:
        if values.get(name.lower()) == "":
            raise OptionError(name, "", "give a value, or leave the option out")
    if "queue" in values and "topic" in values:
        raise OptionError("topic", values["topic"], "'queue' is given too; give one of the two")
    if "queue" not in values and "topic" not in values:
        raise OptionError("queue", None, NO_TARGET)
    for name, other in (("tagsColumn", "topic"), ("routingKeyColumn", "topic"), ("delayColumn", "queue")):
        if name.lower() in values and other not in values:
            raise OptionError(name, values[name.lower()], f"the option is for messages to a {other}")
    write_id = values.get("writeid", "")
    if len(write_id.encode()) > MAX_WRITE_ID_CHARS:
        raise OptionError("writeId", write_id, f"give at most {MAX_WRITE_ID_CHARS} bytes")
    return SinkOptions(
        address=_address(values),
        queue=values.get("queue", ""),
        topic=values.get("topic", ""),
        columns={role: values.get(name.lower(), role) for name, role in _COLUMNS.items()},
        named=frozenset(role for name, role in _COLUMNS.items() if name.lower() in values) | {"body"},
        write_id=write_id,
        batch_size=whole(values, "batchSize", MAX_BATCH, 1, MAX_BATCH),
        in_flight=whole(values, "inFlight", 16, 1, MAX_IN_FLIGHT),
        retries=whole(values, "retries", 10, 0, MAX_RETRIES),
        request_timeout=_number(values, "requestTimeout", 10.0, MAX_TIMEOUT_S, "seconds"),
        max_rate=_number(values, "maxMessagesPerSecond", 0.0, MAX_RATE, "messages a second"),
        ordered=flag(values, "ordered", False),
        unique_ids=flag(values, "uniqueDedupIds", False),
    )


def _number(values: Mapping[str, str], option: str, default: float, most: int, what: str) -> float:
    text = values.get(option.lower())
    if text is None:
        return default
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) is None or not 0 < float(text) <= most:
        raise OptionError(option, text, f"give {what}: more than 0, at most {most}")
    return float(text)


def _address(values: Mapping[str, str]) -> Address:
    """Return the address of the server. The errors do not contain the key."""
    url = values.get("url")
    if url is not None:
        if "context" in values or "contextfile" in values:
            raise OptionError("context", values.get("context"), "'url' is given too; give one of the two")
        return _parsed("url", url)
    from_environment = os.environ.get("CMQ_URL")
    if from_environment and "context" not in values and "contextfile" not in values:
        return _parsed("url", from_environment)
    return _of_context(values)


def _parsed(option: str, url: str) -> Address:
    try:
        return parse_address(url)
    except ValueError as problem:
        raise OptionError(option, HIDDEN, str(problem)) from None


def _of_context(values: Mapping[str, str]) -> Address:
    named = values.get("contextfile") or os.environ.get("CMQ_CONTEXT_FILE")
    path = Path(named) if named else default_path()
    chosen = values.get("context")
    try:
        contexts = load_contexts(path, must_exist=bool(named))
    except ContextError as problem:
        raise OptionError("contextFile", str(path), str(problem)) from None
    if chosen is None and contexts.current is None:
        if not named and not contexts.urls:
            raise OptionError("url", None, "give the server (cmq://ID:KEY@host:port), or 'context', or set CMQ_URL")
        raise OptionError("context", None, f"give the name of a context; {path} has no current context")
    try:
        return contexts.address(chosen)
    except ContextError as problem:
        raise OptionError("context", chosen or contexts.current, str(problem)) from None
