"""Infos: the attributes, counts and facts of a queue, topic or subscription, read from a reply."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from cmqd_client.durations import to_datetime
from cmqd_types.declared import Attribute

_TIMES = {"create_time": "created_ms", "modify_time": "modified_ms"}
"""Times with a name on the wire that is not ``<name>_ms``."""


class InfoReply(Protocol):
    """A reply with attributes, counts and facts by their names on the wire."""

    @property
    def request_id(self) -> int: ...  # noqa: D102 - said above
    @property
    def created(self) -> bool: ...  # noqa: D102
    @property
    def attributes(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def counts(self) -> dict[str, int]: ...  # noqa: D102
    @property
    def facts(self) -> dict[str, Any]: ...  # noqa: D102


def info_fields(info: type[msgspec.Struct], reply: InfoReply, declared: Mapping[str, Attribute]) -> dict[str, Any]:
    """Return the fields of an info; a value that the server did not send is absent, so its field has its default.

    Fields named ``..._time`` are times. Other fields are as on the wire, or seconds where the wire has milliseconds. A
    word of a ``declared`` attribute is a member of its enumeration, unless a newer server sent an unknown word.
    """
    details = {**reply.attributes, **reply.counts, **reply.facts}
    fields: dict[str, Any] = {"created": reply.created, "details": details, "request_id": reply.request_id}
    for name in info.__struct_fields__:
        if name in fields:
            continue  # ``created`` has nothing to do with the fact ``created_ms``
        if name.endswith("_time"):
            milliseconds = details.get(_TIMES.get(name, name.removesuffix("time") + "ms"))
            fields[name] = to_datetime(milliseconds) if milliseconds else None
        elif name in details:
            if details[name] is not None:
                fields[name] = details[name]
        elif f"{name}_ms" in details:
            fields[name] = details[f"{name}_ms"] / 1000
    for name, attribute in declared.items():
        if attribute.enumeration is not None and fields.get(name) in attribute.choices:
            fields[name] = attribute.enumeration(fields[name])
    return fields
