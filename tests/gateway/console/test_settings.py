"""The meanings of the settings in the console: an entry for each setting of the broker, in its words in English."""

import re
from pathlib import Path

from cmqd.settings import SETTINGS

PAGES = Path(__file__).resolve().parents[3] / "client" / "cmqd_gateway" / "console" / "static" / "pages" / "server"
ENTRY = re.compile(
    r"^  'settings\.meaning\.(\w+)': \[\n    '((?:[^'\\]|\\.)*)',\n    '(?:[^'\\]|\\.)*',\n  \],$", re.MULTILINE
)


def test_the_console_tells_the_meaning_of_each_setting_in_the_words_of_the_broker() -> None:
    texts = (PAGES / "settings-meanings.text.js").read_text()

    meanings = {name: words.replace("\\'", "'") for name, words in ENTRY.findall(texts)}

    assert meanings == {name: info.text for name, info in SETTINGS.items()}


def test_each_section_has_a_heading() -> None:
    texts = (PAGES / "settings.text.js").read_text()

    headings = set(re.findall(r"^  'settings\.section\.(\w+)'", texts, re.MULTILINE))

    assert headings == {info.section for info in SETTINGS.values()}
