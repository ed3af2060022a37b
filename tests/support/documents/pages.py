"""The documents as tests read them: pages, their fenced blocks, and the blocks that tests do not run."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
"""Written by hand. The formats and ARCHITECTURE stand beside the code and have tests of their own."""

_BLOCK = re.compile(
    r"^(?:<!-- not run by the tests: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    reason: str | None
    """The reason why no test runs the block; None if a test does."""


def blocks(page: Path, language: str) -> list[Block]:
    """Return the blocks of a page in one language."""
    found = [Block(match["language"], match["text"], match["reason"]) for match in _BLOCK.finditer(page.read_text())]
    return [block for block in found if block.language == language]


def blocks_to_run(page: Path, language: str) -> list[str]:
    """Return the text of the blocks that a test must run."""
    return [block.text for block in blocks(page, language) if block.reason is None]
