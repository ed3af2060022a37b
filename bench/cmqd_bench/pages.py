"""The generated parts of the documents: ``python -m cmqd_bench.pages``; ``make docs`` runs it.

``PARTS`` has the parts of pages, ``pages`` the files that are generated as a whole. ``docs/internals/decisions/`` gets
links to the decision records.

A generated part of a page stands between ``<!-- NAME: ... -->`` and ``<!-- end of NAME -->``; the rest of the page is
written by hand. ``tests/test_docs.py`` fails if a file differs from the output of this module.
"""

import ast
import dataclasses
import json
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from cyclopts import Parameter

import cmqd.core
import cmqd.engine
import cmqd_gateway.console
from cmqd.settings import SETTINGS, SettingInfo
from cmqd_bench.documents import api3_tables, cmq_tables, parts
from cmqd_bench.documents.attribute_tables import STORED, TABLES, docs_table, segments_table, spec_table
from cmqd_bench.documents.client_attributes import declared_attributes
from cmqd_bench.documents.decision_records import index_by_room, read_records
from cmqd_bench.documents.operation_tables import costs_table, roles_table
from cmqd_bench.documents.stored import stored
from cmqd_gateway.process import gateway_settings as gateway

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench/results"
DECISIONS = ROOT / "cmqd/decisions"
DECISION_PAGES = ROOT / "docs/internals/decisions"

ROOMS_HEAD = """# The rooms and their modules

Made from the first sentences of the docstrings (`make docs`). [Architecture](ARCHITECTURE.md) says what a room must not
know, and how the rooms work together."""

SUPPORT_HEAD = """# Parts that tests share

Made from the first sentences of the docstrings (`make docs`). A folder is for one room or one idea; look here before
you write a rig, a client or a loop that waits."""

Result = dict[str, Any]


def _rate(result: Result) -> float:
    return float(result["messages_per_second"])


def _cpu(result: Result) -> float | None:
    return float(result["server_cpu_us_per_message"])


def _latency(result: Result) -> str:
    return f"latency p50 {result['latency_ms']['p50']:.1f} ms, p99 {result['latency_ms']['p99']:.1f} ms"


@dataclass(frozen=True)
class Measurement:
    """A row of the table; the file is in ``bench/results``, named by commit and scenario."""

    work: str
    file: str
    also: Callable[[Result], str] = lambda result: ""
    rate: Callable[[Result], float] = _rate
    server_cpu_us: Callable[[Result], float | None] = _cpu


def _fan_out(queues: int) -> Measurement:
    return Measurement(
        f"publish to {queues} queues (per copy)",
        f"c00b6ef8eb-fanout{queues}",
        lambda result: f"{result['disk_bytes_per_copy']:.0f} bytes of disk per copy",
        lambda result: float(result["copies_per_second"]),
        lambda result: float(result["server_cpu_us_per_copy"]),
    )


MEASUREMENTS = (
    Measurement(
        "send, receive and delete, one message per request",
        "50a394d6ad-cycle-1",
    ),
    Measurement(
        "send, receive and delete, 16 messages per request",
        "50a394d6ad-cycle-16",
    ),
    Measurement("one message at a time, 2,000 a second", "50a394d6ad-latency", also=_latency),
    Measurement(
        "10,000 idle connections in long polls, 500 messages a second",
        "50a394d6ad-idle",
        also=lambda result: f"{result['rss_kib_per_connection']:.1f} KiB of memory per connection; {_latency(result)}",
    ),
    Measurement(
        "receive and delete from a backlog of 10,000,000",
        "50a394d6ad-backlog",
        lambda result: (
            f"backlog: {result['rss_growth_mib']:.0f} MiB of memory; restart after SIGKILL: "
            f"{result['restart_seconds']:.1f} s"
        ),
    ),
    _fan_out(10),
    _fan_out(100),
    Measurement(
        "Spark reads the log, all columns",
        "50a394d6ad-spark",
        also=lambda result: f"{result['batch']['of_parquet']['best']:.2f} of the rate of Parquet",
        rate=lambda result: float(result["batch"]["messages_per_second"]["cmqd"]),
        server_cpu_us=lambda result: None,
    ),
)


def load(measurement: Measurement) -> Result:
    """Return the stored result of a measurement."""
    return json.loads((RESULTS / f"{measurement.file}.json").read_text())


def measurements_table() -> str:
    """Return the table of measurements in Markdown."""
    lines = ["| work | messages/s | server CPU per message | |", "| --- | ---: | ---: | --- |"]
    for measurement in MEASUREMENTS:
        result = load(measurement)
        cpu_us = measurement.server_cpu_us(result)
        cpu = "" if cpu_us is None else f"{cpu_us:.3g} µs"
        row = (measurement.work, f"{measurement.rate(result):,.0f}", cpu, measurement.also(result))
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def sources_table() -> str:
    """Return the table that names file, commit, machine and options by measurement."""
    lines = ["| work | file in `bench/results` | machine | options |", "| --- | --- | --- | --- |"]
    for measurement in MEASUREMENTS:
        result = load(measurement)
        conditions = result["conditions"]
        machine = f"{conditions['cores']} cores, Python {conditions['python']}, {conditions['file_system']}"
        options = result.get("options", {key: result[key] for key in ("messages", "body", "master") if key in result})
        shown = ", ".join(f"{name} {options[name]}" for name in sorted(options))
        lines.append(f"| {measurement.work} | `{measurement.file}.json` | {machine} | {shown} |")
    return "\n".join(lines)


def shown_default(info: SettingInfo) -> str:
    """Return the default of a setting as a settings file has it."""
    if info.default in (None, ""):
        return "none"
    return str(info.default).lower() if isinstance(info.default, bool) else info.default_text


def shown_range(info: SettingInfo) -> str:
    """Return the range of a number or the values of a choice; empty for text and paths."""
    if info.low is None or info.high is None:
        return info.allowed if "or" in info.allowed.split() else ""
    if info.unit is None:
        return f"{info.low} to {info.high}"
    return f"{info.unit.format(info.low)} to {info.unit.format(info.high)}"


def settings_tables() -> str:
    """Return a table of settings per section of the settings file, in Markdown."""
    parts: list[str] = []
    for section, infos in groupby(SETTINGS.values(), key=lambda info: info.section):
        parts.append(f"### [{section}]\n\n| setting | default | range | meaning |\n| --- | --- | --- | --- |")
        parts[-1] += "".join(
            f"\n| `{info.name}` | {shown_default(info)} | {shown_range(info)} | {info.text} |" for info in infos
        )
    return "\n\n".join(parts)


def gateway_settings_table() -> str:
    """Return the table of the gateway's settings in Markdown; the flags' help texts have the ranges."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    hints = typing.get_type_hints(gateway.Settings, include_extras=True)
    for field in dataclasses.fields(gateway.Settings):
        (parameter,) = (note for note in hints[field.name].__metadata__ if isinstance(note, Parameter))
        default = "none" if field.default in (None, "", ()) else str(field.default)
        lines.append(f"| `{field.name}` | {default.lower()} | {parameter.help} |")
    return "\n".join(lines)


def decisions_list() -> str:
    """Return the index of the decision records by room, in Markdown."""
    return index_by_room(read_records(DECISIONS))


def glossary_table(package: ModuleType) -> str:
    """Return the glossary of a package's docstring as a table."""
    terms = re.findall(r"^- ([^:]+): (.+)$", (package.__doc__ or "").partition("\nGlossary:")[2], re.MULTILINE)
    rows = [f"| {term} | {meaning.replace('``', '`')} |" for term, meaning in terms]
    return "\n".join(["| term | meaning |", "| --- | --- |", *rows])


def rooms(*tops: Path) -> list[str]:
    """Return every package below these folders, as a path in the checkout."""
    packages = [file.parent for top in tops for file in top.rglob("__init__.py")]
    return sorted(str(package.relative_to(ROOT)) for package in packages)


def modules_table(room: str) -> str:
    """Return the table of a room: its modules and the first sentences of their docstrings."""
    modules = [path for path in sorted((ROOT / room).glob("*.py")) if not path.name.startswith(("__init__", "test_"))]
    rows = [f"| `{path.stem}` | {first_sentence(path)} |" for path in modules]
    return "\n".join(["| module | contents |", "| --- | --- |", *rows])


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, in Markdown."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph)[0].removesuffix(":").removesuffix(".")
    names = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", sentence.replace("``", "`"))
    return names.replace("|", "\\|")


def rooms_page(head: str, *tops: Path) -> str:
    """Return a page with the modules of all packages below these folders."""
    parts = [
        f"## {room}\n\n{first_sentence(ROOT / room / '__init__.py')}.\n\n{modules_table(room)}" for room in rooms(*tops)
    ]
    return "\n\n".join([head, *parts]) + "\n"


def module_pages() -> dict[Path, str]:
    """Return the pages of modules: of the product, and of the parts that tests share."""
    product = (ROOT / "cmqd", *(ROOT / "protocol").glob("*/"), *(ROOT / "client").glob("*/"))
    return {
        ROOT / "cmqd/ROOMS.md": rooms_page(ROOMS_HEAD, *product),
        ROOT / "tests/support/README.md": rooms_page(SUPPORT_HEAD, ROOT / "tests/support"),
    }


PARTS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("docs/benchmarks.md", "measurements", measurements_table),
    ("docs/benchmarks.md", "sources", sources_table),
    ("README.md", "peers", lambda: parts.peers_text(stored("peers"))),
    ("docs/benchmarks.md", "peers", lambda: parts.all_peers_text(stored("peers"))),
    ("docs/benchmarks.md", "curves", lambda: parts.curves_text(stored("curves"))),
    ("docs/benchmarks.md", "steps", lambda: parts.curve_tables(stored("curves"))),
    ("docs/settings.md", "settings", settings_tables),
    ("docs/gateway.md", "gateway settings", gateway_settings_table),
    ("docs/cmq-api.md", "actions", cmq_tables.actions_table),
    ("docs/cmq-api.md", "errors", cmq_tables.errors_table),
    ("docs/cmq-api-3.md", "actions", api3_tables.actions_table),
    ("docs/cmq-api-3.md", "codes", api3_tables.codes_table),
    *(
        ("docs/glossary.md", f"terms of {package.__name__}", partial(glossary_table, package))
        for package in (cmqd.core, cmqd.engine, cmqd_gateway, cmqd_gateway.console)
    ),
    ("docs/internals/decisions.md", "decisions", decisions_list),
    ("protocol/SPEC.md", "operations by role", roles_table),
    ("cmqd/ARCHITECTURE.md", "operations by cost", costs_table),
    *(("protocol/SPEC.md", f"attributes of a {noun}", partial(spec_table, noun)) for noun in TABLES),
    *(("protocol/SEGMENTS.md", f"attributes of a {noun}", partial(segments_table, noun)) for noun in STORED),
    ("docs/model.md", "attributes of a queue", partial(docs_table, "queue")),
    ("docs/topics.md", "attributes of a topic", partial(docs_table, "topic")),
    ("docs/topics.md", "attributes of a subscription", partial(docs_table, "subscription")),
)
"""File, name of the part, and the function that makes the part."""


def replaced(text: str, name: str, content: str) -> str:
    """Return a page with the content of a generated part replaced.

    Raises ``ValueError`` if the page does not have the part exactly once.
    """
    parts = re.compile(rf"(<!-- {name}: [^\n]* -->\n).*?(\n<!-- end of {name} -->)", re.DOTALL)
    page, replacements = parts.subn(lambda match: f"{match[1]}\n{content}\n{match[2]}", text)
    if replacements != 1:
        raise ValueError(f"the page has {replacements} parts named {name!r}, not 1")
    return page


def pages() -> dict[Path, str]:
    """Return every file with generated parts, with its new content."""
    contents = {
        ROOT / "client/cmqd_client/declared_attributes.py": declared_attributes(),
        **module_pages(),
    }
    for file, name, make in PARTS:
        path = ROOT / file
        contents[path] = replaced(contents.get(path) or path.read_text(), name, make())
    return contents


def missing_decision_pages() -> list[Path]:
    """Return the links to decision records that the site lacks; the generator follows links to files only.

    A copy of a record stands in the place of a link, and does not change with the record.
    """
    wanted = {DECISION_PAGES / path.name for path in DECISIONS.glob("*.md")}
    return sorted(path for path in wanted if not (path.is_symlink() and path.exists()))


def stale_pages() -> dict[Path, str]:
    """Return the files that differ from their new content, with that content."""
    return {path: text for path, text in pages().items() if not path.exists() or path.read_text() != text}


def main() -> None:
    """Write the files that differ."""
    DECISION_PAGES.mkdir(exist_ok=True)
    for path in missing_decision_pages():
        path.unlink(missing_ok=True)
        path.symlink_to(Path("../../../cmqd/decisions") / path.name)
    for path, content in stale_pages().items():
        path.write_text(content)


if __name__ == "__main__":
    main()
