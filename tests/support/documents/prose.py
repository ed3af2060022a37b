"""Measure prose: words in place of nouns, and the length of sentences, in Python and in Markdown.

The words are counted because a text that slides back from plain words slides back to these first: a pronoun or an
indefinite stands where a thing has a name.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

# fmt: off
INDEFINITE: Final = frozenset(
    {
        "what", "who", "whom", "whose", "whoever", "whatever", "which", "somebody", "nobody", "anybody",
        "everybody", "something", "nothing", "anything", "everything", "one", "ones", "those", "they", "them",
        "it", "so", "such", "others", "another", "each",
    }
)
# fmt: on
LONG: Final = 30
"""Most words of a sentence that is not long."""

_WORD: Final = re.compile(r"[A-Za-z']+")
_COMMENT: Final = re.compile(r"(?:^[ \t]*|[ \t]{2})#[ :]?[ \t]*(.*)$")
_FENCE: Final = re.compile(r"^```.*?^```[ \t]*$", re.MULTILINE | re.DOTALL)
_HTML_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_ITEM: Final = re.compile(r"^\s*(?:#+|[-*+]|\d+\.)\s+")
_ADDRESS: Final = re.compile(r"\]\([^)]*\)")
_CODE: Final = re.compile(r"`+[^`]*`+")
_END: Final = re.compile(r"(?<=[.!?])[*_`\")]*\s+(?=\S)")


@dataclass(frozen=True, slots=True)
class Prose:
    """Figures of a text."""

    words: int
    indefinite: int
    """Words in place of nouns."""
    sentences: int
    long: tuple[str, ...]
    """The sentences of more than ``LONG`` words."""

    @property
    def indefinite_per_1000(self) -> float:
        return 1000 * self.indefinite / max(1, self.words)

    @property
    def short_share(self) -> float:
        """Share of the sentences that are not long, in percent."""
        return 100 * (1 - len(self.long) / max(1, self.sentences))


def measure(blocks: Iterable[str]) -> Prose:
    """Return the figures of paragraphs, items, cells and headlines. A piece of code counts as one word."""
    words = indefinite = sentences = 0
    long: list[str] = []
    for block in blocks:
        for sentence in _END.split(_CODE.sub(" code ", _ADDRESS.sub("]", block))):
            found = _WORD.findall(sentence)
            if not found:
                continue
            sentences += 1
            words += len(found)
            indefinite += sum(word.lower() in INDEFINITE for word in found)
            if len(found) > LONG:
                long.append(" ".join(sentence.split()))
    return Prose(words, indefinite, sentences, tuple(long))


def python_blocks(source: str) -> Iterator[str]:
    """Yield the paragraphs of the docstrings and of the comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str() as text)):
                        yield from _paragraphs(inspect.cleandoc(text).splitlines())
                    case _:
                        pass
    comment: list[str] = []
    for line in source.splitlines():
        found = _COMMENT.search(line) if "#" in line else None
        if found is not None:
            comment.append(found[1])
        if comment and (found is None or not line.lstrip().startswith("#")):
            yield " ".join(comment)
            comment = []
    yield " ".join(comment)


def markdown_blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs, items, headlines and cells of a page, without blocks of code."""
    yield from _paragraphs(_HTML_COMMENT.sub("", _FENCE.sub("\n\n", text)).splitlines())


def _paragraphs(lines: list[str]) -> Iterator[str]:
    paragraph: list[str] = []
    for line in [*lines, ""]:
        is_row = line.lstrip().startswith("|")
        is_drawn = "  " in line.strip() or re.search("[│├└─═╔]", line) is not None
        is_item = _ITEM.match(line) is not None
        if paragraph and (not line.strip() or is_row or is_drawn or is_item):
            yield " ".join(paragraph)
            paragraph = []
        if is_row:
            yield from (cell for cell in line.strip().strip("|").split(" | ") if cell.strip())
        elif is_drawn:
            yield line
        elif is_item and line.startswith("#"):
            yield _ITEM.sub("", line)
        elif line.strip():
            paragraph.append(_ITEM.sub("", line).strip())
