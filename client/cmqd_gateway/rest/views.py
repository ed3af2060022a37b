"""Replies of the JSON API that are made from results of the client: fields, types and words are declared once.

A *view* is a reply type with the fields of a result. It differs from the result in the values that JSON needs: numbers
of 64 bits are strings, time spans are seconds, bodies are text with an encoding, and milliseconds are times. The
docstrings of the result are the descriptions in the OpenAPI document.
"""

import ast
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from cmqd_client.durations import to_datetime
from cmqd_client.messages.message_ids import MessageId
from cmqd_gateway.rest.attributes import described
from cmqd_gateway.rest.values import Body, Encoding, IdText, MessageIdText, Seconds, json_body
from cmqd_types.declared import Attribute

_OF_THE_CLIENT = frozenset({"request_id", "details", "address"})
"""Fields of results that no reply has: a request over HTTP has no number, and reaches the broker by the gateway."""

ReplyT = TypeVar("ReplyT", bound="Reply")
Convert = Callable[[Any], Any]
"""Turns a value of a result into the value of a reply."""


class Reply(Struct, frozen=True, kw_only=True):
    """Root of the replies."""

    @classmethod
    def of(cls: type[ReplyT], result: Any, **given: Any) -> ReplyT:
        """Return the view of a result; ``given`` has the fields that the result lacks."""
        values = {name: convert(getattr(result, source)) for name, source, convert in _plans[cls] if name not in given}
        if "body" in cls.__struct_fields__:
            body = result.body
            values["body"], values["encoding"] = (None, None) if body is None else json_body(body)
        return cls(**values, **given)


_plans: dict[type[Reply], list[tuple[str, str, Convert]]] = {}
"""By view: the name of each field, its name in the result, and the conversion of its value."""
_views: dict[type, type[Reply]] = {}
"""Views by the type of their results."""
_described: dict[type[Reply], Callable[[], Mapping[str, str]]] = {}
"""By view: the descriptions of its fields. Read from the source of the results, a fifth of the time of a start, when
the OpenAPI document is made."""


def view(
    result: type[Struct],
    *,
    texts: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    only: Collection[str] = (),
    declared: Mapping[str, Attribute] | None = None,
) -> Callable[[type[ReplyT]], type[ReplyT]]:
    """Return a decorator that adds the fields of a result to a reply type.

    A field that the class declares itself has the place, type and description of that declaration.

    Args:
        result: type of the results. Values of this type within other results get the same view.
        texts: integers that are strings in JSON.
        renamed: by the name of the result's field, the name in JSON.
        without: fields that the reply has not.
        only: the fields of a part of a result; empty = all.
        declared: attributes with descriptions for fields without a docstring.
    """

    def add(cls: type[ReplyT]) -> type[ReplyT]:
        own = get_type_hints(cls, include_extras=True)
        sources: dict[str, str] = {}
        fields: list[tuple[str, Any]] = []
        plan: list[tuple[str, str, Convert]] = []
        for source, hint in get_type_hints(result, include_extras=True).items():
            if source in _OF_THE_CLIENT or source in without or (only and source not in only):
                continue
            name = (renamed or {}).get(source, source)
            if source == "body":
                fields += [("body", _optional(Body, hint)), ("encoding", _optional(Encoding, hint))]
                continue
            if source.endswith("_ms") and source not in (renamed or {}):
                name = source.removesuffix("ms") + "time"
            kind, convert = _kind(source, hint, source in texts)
            if name in own:
                kind = own.pop(name)
            else:
                sources[name] = source
            fields.append((name, kind))
            plan.append((name, source, convert))
        fields += own.items()
        namespace: dict[str, Any] = {
            "__doc__": cls.__doc__,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
        }
        if cls.__repr__ is not Reply.__repr__:
            namespace["__repr__"] = cls.__repr__
        made = msgspec.defstruct(cls.__name__, fields, bases=(Reply,), namespace=namespace, frozen=True, kw_only=True)
        shown = cast("type[ReplyT]", made)
        _plans[shown] = plan
        _described[shown] = lambda: _words(result, declared or {}, sources)
        if not only:
            _views[result] = shown
        return shown

    return add


def _optional(kind: Any, hint: Any) -> Any:
    return kind | None if NoneType in get_args(hint) else kind


def _kind(name: str, hint: Any, is_text: bool) -> tuple[Any, Convert]:
    """Return the type of a field in JSON, and the conversion of its values."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [each for each in arguments if each is not NoneType]
        if len(kinds) < len(arguments):
            kind, convert = _kind(name, Union[tuple(kinds)], is_text)  # noqa: UP007 - of a number that varies
            return kind | None, lambda value: None if value is None else convert(value)
        if any(isinstance(each, type) and issubclass(each, Enum) for each in kinds):
            # An enumeration, or the string of a newer server.
            return str, str
        return hint, _same
    if origin in (list, tuple):
        kind, convert = _kind(name, arguments[0], is_text)
        return list[kind], lambda values: [convert(value) for value in values]
    if origin is not None and issubclass(origin, Mapping):
        return dict[arguments[0], arguments[1]], dict
    if hint is MessageId:
        return MessageIdText, _same
    if hint is timedelta:
        return Seconds, timedelta.total_seconds
    if hint is int and name.endswith("_ms"):
        return datetime, to_datetime
    if hint is int and is_text:
        return IdText, str
    if isinstance(hint, type) and issubclass(hint, Enum):
        return str, lambda value: value.value
    if hint in _views:
        nested = _views[hint]
        return nested, nested.of
    return cast("Any", hint), _same


def _same(value: Any) -> Any:
    return value


def descriptions(reply: type[Reply]) -> dict[str, str]:
    """Return the descriptions of the fields that a reply has from a result, by their names in JSON."""
    words: dict[str, str] = {}
    for base in reversed(reply.__mro__):
        if base in _described:
            words.update(_described[base]())
    return words


def _words(result: type[Struct], declared: Mapping[str, Attribute], sources: Mapping[str, str]) -> dict[str, str]:
    """Return the descriptions of a view; ``sources`` has the result's field for each described field of the view."""
    words = {each.argument: described(each).description or "" for each in declared.values()}
    words.update(_docstrings(result))
    return {name: words[source] for name, source in sources.items() if words.get(source)}


@cache
def _docstrings(result: type[Struct]) -> Mapping[str, str]:
    """Return the docstrings of the fields of a class by name, in the words of JSON."""
    found: dict[str, str] = {}
    for base in reversed(result.__mro__):
        if not issubclass(base, Struct) or base is Struct:
            continue
        (tree,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = in_json(words)
                case _:
                    pass
    return found


def in_json(words: str) -> str:
    """Return the text of a docstring in the words of JSON: ``null`` for ``None``, and Markdown for code."""
    text = re.sub(r"``([^`]*)``", r"`\1`", " ".join(words.split()))
    return re.sub(r"\bNone\b", "null", text)
