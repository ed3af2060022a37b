"""The console's Chinese texts of declarations: a twin for each attribute of the API and for each setting of the broker.

English is in the declaration alone. An attribute or a setting without a twin is shown in English.
"""

import re
from pathlib import Path

from cmqd.settings import SETTINGS
from cmqd_gateway.rest import openapi

STATIC = Path(__file__).resolve().parents[3] / "client" / "cmqd_gateway" / "console" / "static"


def twins(name: str) -> dict[str, int]:
    """Return the number of Chinese texts by name."""
    (texts,) = re.findall(
        r"^export const CHINESE = \{\n(.*?)^\};", (STATIC / name).read_text(), re.DOTALL | re.MULTILINE
    )
    entries = re.split(r"^  (\w+): ", texts, flags=re.MULTILINE)[1:]
    return {key: len(re.findall(r"'(?:[^'\\]|\\.)+'", entry)) for key, entry in zip(*[iter(entries)] * 2, strict=True)}


def test_each_attribute_has_a_chinese_label_and_hint() -> None:
    schemas = openapi.build()["components"]["schemas"]
    declared: dict[str, dict[str, str]] = {}
    for kind in ("QueueAttributes", "TopicAttributes", "NewSubscription", "SubscriptionChanges"):
        for name, field in schemas[kind]["properties"].items():
            if "x-unit" in field:
                texts = {key: field[key] for key in ("title", "x-hint", "x-zero") if key in field}
                assert declared.setdefault(name, texts) == texts, f"{name} has one twin, and two meanings"

    assert twins("ui/attributes.text.js") == {name: len(texts) for name, texts in declared.items()}


def test_each_setting_has_a_chinese_meaning() -> None:
    assert twins("pages/server/settings-meanings.text.js") == dict.fromkeys(SETTINGS, 1)


def test_each_section_of_the_settings_has_a_heading() -> None:
    texts = (STATIC / "pages/server/settings.text.js").read_text()

    headings = set(re.findall(r"^  'settings\.section\.(\w+)'", texts, re.MULTILINE))

    assert headings == {info.section for info in SETTINGS.values()}
