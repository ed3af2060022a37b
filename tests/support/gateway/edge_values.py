"""Values at the edges and beyond, for requests in JSON and in forms: seeded, as text, since most of them no encoder
would write.

JSON Schema describes numbers without bounds of a double, strings without lone surrogates or NUL, and no depth.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

NUMBERS: Final = (
    *("0", "-0", "-1", "1", "1.5", "1e999", "-1e999", "1e308", "1e-999", "1e5", "2147483648", "4294967296", "1e9"),
    *("9007199254740993", "9223372036854775808", "18446744073709551616", "9" * 400, "9" * 5_000, "-" + "9" * 5_000),
)
TIMES: Final = (
    *("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z"),
    *("1970-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-14:00", "2027-02-30T00:00:00Z"),
    *("2027-01-31T09:00:00", "10000-01-01T00:00:00Z", "2027-01-31T09:00:00Z", "-1", "253402300800"),
)
TEXTS: Final = (
    *("", " ", "\0", "a\0b", "a" * 64, "a" * 65, "ab", "orders", "news", "*", "#", "a.*.#", "." * 16, "../..", "%00"),
    *("\u202eabc", "\u200b", "\ufffe", "\U0001f600" * 20, "é" * 64, "a\nb", "a;b", "'\"<>", "null", "NaN", "inf"),
    *("Msg-0000000000000001", "Msg-ffffffffffffffff", "Msg-1", "=", "====", "QQ==", "Q", "utf-8", "base64"),
    *("http://127.0.0.1:9/x", "http://[::1", "http://127.0.0.1:99999/", "queue://", "* * * * *", "61 25 * * 8", "@"),
    *NUMBERS,
    *TIMES,
)
RAW: Final = (
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\ud83d\\ude00"', "true", "false", "null", "{}", "[]", "[[]]"),
    *(
        '{"":0}',
        '{"a":1,"a":2}',
        '{"\\ud800":1}',
        "[" * 2_000 + "]" * 2_000,
        '{"a":' * 2_000,
        "[null]",
        '["a",5]',
        "NaN",
        "-",
        "01",
    ),
)
LARGE: Final = 4 << 20
"""Bytes of the largest text: the gateway's limit of a body, and more with the rest of the body."""
LARGE_SHARE: Final = 0.01
"""Share of large texts among the texts: each costs some 50 ms."""


def text(chance: random.Random) -> str:
    """Return a text."""
    if chance.random() < LARGE_SHARE:
        return chance.choice(["x", "\0", '"', "\\", "é", "9", "A"]) * (LARGE // chance.choice([1, 2, 3]))
    return chance.choice(TEXTS)


def json_value(chance: random.Random) -> str:
    """Return a value in JSON, or a piece that is none."""
    kind = chance.random()
    if kind < 0.3:
        return chance.choice(NUMBERS)
    if kind < 0.75:
        return json.dumps(text(chance), ensure_ascii=chance.random() < 0.5)
    if kind < 0.8:
        many = chance.choice([0, 17, 257, 1_001, 20_000])
        return "[" + ",".join([json_value(random.Random(7)) if many < 300 else '"a"'] * many) + "]"
    return chance.choice(RAW)


class Schemas(NamedTuple):
    """The schemas of an OpenAPI document, and how far values keep to them."""

    by_name: Mapping[str, Any]
    edges: float
    """Probability that a value is an edge, whatever its schema."""


def json_of(chance: random.Random, schema: Mapping[str, Any], schemas: Schemas, field: str = "") -> str:
    """Return a value in JSON for a schema; ``field`` is the name of the field that has the value."""
    if "wait" in field:
        # A legal long poll would hold the connection for its time.
        return chance.choice(["0", "-1", "1e999", '"0"', "null", "31"])
    if chance.random() < schemas.edges:
        return json_value(chance)
    if "$ref" in schema:
        return json_of(chance, schemas.by_name[schema["$ref"].rpartition("/")[2]], schemas, field)
    choices = cast("Sequence[Mapping[str, Any]]", schema.get("anyOf") or schema.get("oneOf") or ())
    if choices:
        return json_of(chance, chance.choice(choices), schemas, field)
    if "enum" in schema:
        return json.dumps(chance.choice(schema["enum"]))
    match schema.get("type"):
        case "object":
            properties = cast("Mapping[str, Any]", schema.get("properties") or {"a": {"type": "string"}})
            required = cast("Sequence[str]", schema.get("required", ()))
            chosen = [name for name in properties if chance.random() < (1 - schemas.edges if name in required else 0.3)]
            fields = [f"{json.dumps(name)}:{json_of(chance, properties[name], schemas, name)}" for name in chosen]
            if chance.random() < schemas.edges / 4:
                fields.append(f'"nothing":{json_value(chance)}')
            return "{" + ",".join(fields) + "}"
        case "array":
            many = chance.choice([0, 1, 1, 2, 3, int(schema.get("maxItems", 5)), int(schema.get("maxItems", 5)) + 1])
            entry = cast("Mapping[str, Any]", schema.get("items", {}))
            return "[" + ",".join(json_of(chance, entry, schemas, field) for _ in range(min(many, 300))) + "]"
        case "integer" | "number":
            low, high = schema.get("minimum", 0), schema.get("maximum", 1 << 32)
            legal = [low, high, min(low + 1, high)]
            return str(chance.choice([low - 1, high + 1]) if chance.random() < schemas.edges else chance.choice(legal))
        case "boolean":
            return chance.choice(["true", "false"])
        case _:
            examples = cast("Sequence[str]", schema.get("examples", ()))
            if schema.get("format") == "date-time":
                return json.dumps(chance.choice(TIMES))
            return json.dumps(chance.choice([*examples, "orders", "news", "text"]))
