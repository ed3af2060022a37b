"""The golden vectors of the protocol as Python values."""

import json
from pathlib import Path
from typing import Any, cast

VECTORS = Path(__file__).parents[3] / "protocol" / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    """The vectors of a file."""
    content: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    assert content["protocol_version"] == 1
    return content["vectors"]


def names(vectors: list[dict[str, Any]]) -> list[str]:
    return [vector["name"] for vector in vectors]


def value_of(form: Any) -> Any:
    """The value that a vector's decoded form stands for; see ``protocol/vectors/README.md``."""
    match form:
        case list():
            return [value_of(item) for item in cast("list[Any]", form)]
        case {"bytes": str(content)}:
            return bytes.fromhex(content)
        case {"int": str(content)}:
            return int(content)
        case {"map": dict()}:
            entries = cast("dict[str, Any]", form["map"])
            return {key: value_of(item) for key, item in entries.items()}
        case _:
            return form
