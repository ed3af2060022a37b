"""The selection of a stream, as its offsets keep it. Pure.

A checkpoint of Spark belongs to a selection. With a changed selection, messages of the added queues would be missing
below the position, without an error. So an offset keeps a digest of the selection, and its text for the error.
"""

import hashlib
import json
import logging

from cmqd_log.data_folder.positions import Offset
from cmqd_log.errors import OptionError
from cmqd_log.options import Options

MAX_SHOWN = 200
"""Characters of the text: Spark stores an offset for each batch, and a list of queues may be long."""
DIGEST_DIGITS = 16

_log = logging.getLogger("cmqd_log")


def selection_of(options: Options) -> Offset:
    """Return the entries of an offset for the selection: ``selection``, a text, and ``selection_digest``."""
    chosen: dict[str, str | int | list[str]] = {
        "queue": sorted(set(options.queues)),
        "queueId": options.queue_id,
        "queuePattern": options.queue_pattern,
        "topic": sorted(set(options.topics)),
        "account": options.account,
        "tags": sorted(set(options.tags)),
        "routingKey": options.routing_key,
    }
    given = {name: value for name, value in chosen.items() if value}
    texts = (f"{name}={','.join(value) if isinstance(value, list) else value}" for name, value in given.items())
    text = "; ".join(texts) or "all messages"
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:DIGEST_DIGITS]
    return {"selection": text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…", "selection_digest": digest}


def check_selection(offset: Offset, options: Options) -> None:
    """Check that an offset is of the selection of the options.

    Raises:
        OptionError: the stream read a different selection up to the offset, and ``allowNewSelection`` is not set.
    """
    now = selection_of(options)
    before = offset.get("selection_digest", now["selection_digest"])
    if before != now["selection_digest"] and not options.allow_new_selection:
        raise OptionError(
            "allowNewSelection",
            "false",
            f"the stream has read {offset.get('selection', 'a different selection')} up to row {offset['lsn']}, and "
            f"its options select {now['selection']}; true goes on with the new selection above that row, and a new "
            "checkpoint reads the new selection from its first row",
        )


def warn_unnamed(offset: Offset, options: Options) -> None:
    """Log that an offset does not name its selection."""
    _log.warning(
        "the position at row %s names no selection, because an earlier version of cmqd wrote the position; it is used "
        "as a position of %s",
        offset["lsn"],
        selection_of(options)["selection"],
    )
