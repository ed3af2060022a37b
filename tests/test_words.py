"""Plain words: packages and pages use few words in place of nouns, and few long sentences (CONTRIBUTING.md, Words)."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from cmqd_bench import pages
from support.documents.prose import LONG, markdown_blocks, measure, python_blocks

ROOT = Path(__file__).parents[1]

IN_CODE = 30
"""Most words in place of nouns among 1,000 words of docstrings and comments. Libraries that read well have 12 to 32."""
IN_MARKDOWN = 35
SHORT_SHARE = 90
"""Least share of the sentences, in percent, with at most ``LONG`` words."""
FEW_WORDS = 100
"""A text with fewer words has no rate worth the name."""

NOT_YET = frozenset[str]()
"""Pages that still have to be rewritten. The list only gets shorter: a page that holds the bars may not be on it."""


def faults(blocks: Iterable[str], bar: float) -> str:
    """Return the bars that a text misses, with its long sentences; empty if the text holds them."""
    found = measure(blocks)
    if found.words < FEW_WORDS:
        return ""
    texts: list[str] = []
    if found.indefinite_per_1000 > bar:
        texts.append(f"{found.indefinite_per_1000:.1f} words in place of nouns among 1,000, above {bar}")
    if found.short_share < SHORT_SHARE:
        texts.append(f"{found.short_share:.1f} % of the sentences have at most {LONG} words, below {SHORT_SHARE} %:")
        texts += found.long
    return "\n    ".join(texts)


def markdown_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout: " + listing.stderr.decode().strip())
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink() and "vendor" not in path.parts]


def test_packages_are_written_in_plain_words() -> None:
    missed: list[str] = []
    for room in [*pages.rooms(), "bench/cmqd_bench"]:
        modules = sorted((ROOT / room).glob("*.py"))
        fault = faults((block for path in modules for block in python_blocks(path.read_text())), IN_CODE)
        if fault:
            missed.append(f"{room}: {fault}")

    assert not missed, "\n".join(missed)


def test_pages_are_written_in_plain_words() -> None:
    found = {
        str(path.relative_to(ROOT)): faults(markdown_blocks(path.read_text()), IN_MARKDOWN) for path in markdown_files()
    }
    missed = {name for name, fault in found.items() if fault}

    assert missed == NOT_YET, "\n".join(f"{name}: {found.get(name) or 'holds the bars'}" for name in missed ^ NOT_YET)


def test_words_and_sentences_are_counted() -> None:
    module = '"""Open a queue.\n\nIt is closed by `it` and by those who hold it.\n"""\nLIMIT = 3  # Each of them.\n'
    page = (
        "# One title\n\n```\nit it it\n```\n\n| it | two |\n| --- | --- |\n\n- An item [it](it.md)\n  goes on. "
        + "far " * 31
    )

    code = measure(python_blocks(module))
    text = measure(markdown_blocks(page))

    assert (code.words, code.indefinite, code.sentences, code.long) == (17, 6, 3, ())
    assert (text.words, text.indefinite, text.sentences, len(text.long)) == (40, 3, 5, 1)
    assert text.short_share == 80
