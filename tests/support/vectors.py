"""The golden vectors of the protocol as Python values."""

import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    """The vectors of one file."""
    content: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    assert content["protocol_version"] == 1
    return content["vectors"]


def names(vectors: list[dict[str, Any]]) -> list[str]:
    return [vector["name"] for vector in vectors]


def value_of(form: Any) -> Any:
    """The value that a vector's decoded form stands for; see ``protocol/vectors/README.md``."""
    if isinstance(form, list):
        items: list[Any] = form
        return [value_of(item) for item in items]
    if isinstance(form, dict):
        [(kind, content)] = form.items()  # pyright: ignore[reportUnknownVariableType]
        if kind == "bytes":
            return bytes.fromhex(content)  # pyright: ignore[reportUnknownArgumentType]
        if kind == "int":
            return int(content)  # pyright: ignore[reportUnknownArgumentType]
        assert kind == "map"
        return {key: value_of(item) for key, item in content.items()}  # pyright: ignore
    return form
