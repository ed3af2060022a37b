"""README and docs/: generated parts, links, and names of targets and options."""

import dataclasses
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from cmq_cli.commands.bench import read_scenario
from cmqd import settings
from cmqd.core.limits import Limits
from cmqd.server.process.http_gateway import checked_flags
from cmqd_bench import pages as generated
from cmqd_bench.documents.decision_records import index_by_room, read_record, read_records
from cmqd_gateway.process import gateway_settings as gateway_settings
from cmqd_log import options
from pyspark_cmqd.sending import sink_options
from support.documents.pages import PAGES, ROOT, blocks

README = ROOT / "README.md"
LINKED_PAGES = [
    *PAGES,
    *sorted((ROOT / "docs/internals").glob("*.md")),
    *sorted((ROOT / "cmqd").rglob("*.md")),
    *sorted(ROOT.glob("C*.md")),
    *sorted((ROOT / "protocol").glob("*.md")),
    ROOT / "bench/README.md",
]


def test_the_readme_is_short_and_runs_code_by_line_20() -> None:
    lines = README.read_text().splitlines()

    assert len(lines) <= 200
    assert "cmq send" in "\n".join(lines[:20])


def test_the_generated_parts_are_up_to_date() -> None:
    # The tables of modules quote docstrings. Their words may be one ``make docs`` behind; their names may not, see
    # test_every_package_has_a_table_with_its_modules.
    stale = [path for path in generated.stale_pages() if path not in generated.module_pages()]
    assert [*stale, *generated.missing_decision_pages()] == [], "run: make docs"


def test_a_page_without_a_part_is_an_error() -> None:
    with pytest.raises(ValueError, match="the page has 0 parts named 'settings', not 1"):
        generated.replaced("# Settings\n", "settings", "content")


def test_every_setting_is_in_its_section_of_the_settings_page() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    sections = {
        part.partition("]")[0]: re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in page.split("\n### [")[1:]
    }

    rows = [(info.section, info.name) for info in settings.SETTINGS.values()]
    assert [(section, name) for section, names in sections.items() for name in names] == rows


def test_the_settings_file_that_the_page_shows_is_accepted(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs/settings.md", "toml")
    file = tmp_path / "cmqd.toml"
    file.write_text(block.text)

    loaded = settings.load(file=file)

    shown = {name: value for section in tomllib.loads(block.text).values() for name, value in section.items()}
    assert shown.keys() == {"data", "listen", "segment_bytes", "keep_history_ms"}
    assert (loaded.segment_bytes, loaded.keep_history_ms) == (1 << 30, 7 * 86_400_000)


def test_the_gateway_accepts_the_settings_file_that_its_page_shows(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs/gateway.md", "toml")
    file = tmp_path / "gateway.toml"
    file.write_text(block.text)

    flags = checked_flags(settings.Settings(http="127.0.0.1:0", http_config=file))

    assert flags == [
        *("--public-names=mq.example", "--public-names=mq.example:443", "--metrics-listen=127.0.0.1:9100"),
        "--max-requests-per-second-per-key=500",
    ]


def test_the_scenario_of_the_page_on_load_tests_can_be_read(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs/load-testing.md", "toml")
    file = tmp_path / "load.toml"
    file.write_text(block.text)

    assert list(read_scenario(file)) == ["cycle", "half of the rate"]


def test_the_gateway_accepts_the_addresses_that_the_page_of_cmqs_tcp_protocol_shows(tmp_path: Path) -> None:
    shown = [block.text for block in blocks(ROOT / "docs/cmq-tcp.md", "toml")]
    file = tmp_path / "gateway.toml"
    flags: list[str] = []
    for text in shown:
        file.write_text(text)
        flags += checked_flags(settings.Settings(http="127.0.0.1:0", cmq_tcp="127.0.0.1:0", http_config=file))

    assert flags == [
        "--cmq-tcp-addresses=mq.example:15682",
        *("--cmq-tcp-addresses=gateway-1.example:5682", "--cmq-tcp-addresses=gateway-2.example:5682"),
    ]


def test_every_setting_of_the_gateway_is_on_its_page() -> None:
    table = (ROOT / "docs/gateway.md").read_text().partition("## All settings of the gateway")[2]

    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [
        field.name for field in dataclasses.fields(gateway_settings.Settings)
    ]


def test_the_links_of_a_page_lead_to_files() -> None:
    for page in LINKED_PAGES:
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)", page.read_text())

        assert [link for link in links if not (page.parent / link).exists()] == [], page


def test_rooms_and_successors_of_decisions_exist() -> None:
    records = read_records(generated.DECISIONS)
    numbers = {record.title[:4] for record in records}

    assert [record.room for record in records if not (ROOT / record.room).is_dir()] == []
    assert {number for record in records for number in record.successors} - numbers == set()


def test_a_decision_without_its_front_line_is_an_error(tmp_path: Path) -> None:
    record = tmp_path / "0001-storage.md"

    record.write_text("# 0001 Storage\n\n**Context.** A loop that is busy.\n")
    with pytest.raises(ValueError, match=r"0001-storage.md must begin with its title and the line 'Status: accepted"):
        read_record(record)

    record.write_text("# 0001 Storage\n\nStatus: amended. Room: `cmqd/core`. Successor: none.\n")
    with pytest.raises(ValueError, match=r"0001-storage.md is amended with 0 successors"):
        read_record(record)


def test_the_index_of_decisions_names_successors(tmp_path: Path) -> None:
    for number, room, successor in (("0001", "b", "none"), ("0002", "a", "none"), ("0003", "b", "0001, 0002")):
        status = "accepted" if successor == "none" else "replaced"
        front = f"Status: {status}. Room: `{room}`. Successor: {successor}."
        (tmp_path / f"{number}-x.md").write_text(f"# {number} X\n\n{front}\n")

    assert index_by_room(read_records(tmp_path)) == (
        "## a\n\n- [0002 X](decisions/0002-x.md)\n\n"
        "## b\n\n- [0001 X](decisions/0001-x.md)\n- [0003 X](decisions/0003-x.md) (replaced by 0001, 0002)"
    )


def test_the_choices_of_performance_records_lead_to_their_sections_of_the_notebook() -> None:
    headings = re.findall(r"^## (.+)$", (generated.DECISIONS / "measurements.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    links = {
        match
        for path in generated.DECISIONS.glob("[0-9]*.md")
        for match in re.findall(r"\(measurements\.md#([^)]+)\)", path.read_text())
    }

    assert links == anchors


def test_the_pages_name_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`|: )make ([a-z-]+)", page.read_text(), re.MULTILINE)}

    assert {"serve", "demo", "test"} <= named
    assert named - targets == set()


def test_the_pages_name_only_files_of_the_checkout_that_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"`((?:client|bench|protocol)/[\w./]+)`", page.read_text())}

    assert "client/examples/send_and_receive.py" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_block_of_a_page_is_run_or_says_why_not() -> None:
    # The test that runs the blocks of a page; a new page with blocks needs a line here.
    run_by = {
        "sh": {
            "README.md",
            "backup.md",
            "model.md",
            "topics.md",
            "schedules.md",
            "transactions.md",
            "command-line.md",
            "json-api.md",
            "replay.md",
            "history.md",
            "log.md",
            "testing.md",
        },
        "python": {
            "README.md",
            "client.md",
            "frameworks.md",
            "log.md",
            "topics.md",
            "schedules.md",
            "security.md",
            "transactions.md",
            "spark.md",
            "sync.md",
            "testing.md",
        },
        "toml": {"settings.md", "gateway.md", "cmq-tcp.md", "load-testing.md"},
    }
    for language, names in run_by.items():
        shown = {
            page.name for page in PAGES for block in blocks(page, language) if is_for_tests(block.text, block.reason)
        }
        assert shown == names, language
    languages = {match for page in PAGES for match in re.findall(r"^```(\w+)$", page.read_text(), re.MULTILINE)}
    assert languages == set(run_by)


def is_for_tests(text: str, reason: str | None) -> bool:
    """Calls of make are left out, because they build and install. Their targets are checked above."""
    return reason is None and not text.startswith("make ")


def test_the_spark_page_names_every_option_of_source_and_sink() -> None:
    page = (ROOT / "docs/spark.md").read_text()
    names = {
        name
        for module in (options, sink_options)
        for line in re.findall(r"^\| (``.*?) \|", module.__doc__ or "", re.MULTILINE)
        for name in re.findall(r"``(\w+)``", line)
    }

    assert {"path", "writeId"} <= names
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_spark_page_says_how_long_dedup_ids_are_remembered() -> None:
    life, most = Limits().dedup_life_ms // 60_000, Limits().max_dedup_ids
    sentence = f"remembers a dedup id for {life} minutes, and at most {most:,} ids"

    assert sentence in " ".join((ROOT / "docs/spark.md").read_text().split())


def test_every_file_that_architecture_names_exists() -> None:
    page = (ROOT / "cmqd/ARCHITECTURE.md").read_text()
    files = {
        str(path.relative_to(ROOT))
        for top in ("cmqd", "protocol", "client", "tests")
        for path in (ROOT / top).rglob("*")
    }
    # The picture of a send shortens paths to their ends; prose has them from the root of the checkout.
    pictures = set(
        re.findall(r"[a-z_]+/[\w/]+\.py", "".join(re.findall(r"^```$.*?^```$", page, re.MULTILINE | re.DOTALL)))
    )
    prose = set(re.findall(r"`((?:cmqd|protocol|client|tests)/[\w./]+?)/?`", page))

    assert "server/replies/reply_gate.py" in pictures
    assert "cmqd/core/broker.py" in prose
    assert [name for name in sorted(pictures) if not any(file.endswith("/" + name) for file in files)] == []
    assert [name for name in sorted(prose) if name not in files | {"cmqd"}] == []


def test_the_glossaries_are_short_and_in_alphabetical_order() -> None:
    parts = (ROOT / "docs/glossary.md").read_text().split("\n## ")[1:]
    sizes: dict[str, int] = {}
    for part in parts:
        terms = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", part, re.MULTILINE)[2:]
        sizes[part.partition("\n")[0]] = len(terms)
        assert terms == sorted(terms, key=str.casefold)

    assert list(sizes) == ["The broker", "Redundancy", "HTTP", "The console"]
    assert 30 <= sizes.pop("The broker") <= 40
    assert all(5 <= size <= 15 for size in sizes.values())


def test_the_reading_tour_of_architecture_has_twelve_files() -> None:
    tour = (ROOT / "cmqd/ARCHITECTURE.md").read_text().partition("## A reading tour")[2].partition("\n## ")[0]

    assert re.findall(r"^\| (\d+)\.", tour, re.MULTILINE) == [str(number) for number in range(1, 13)]


def test_every_package_has_a_table_with_its_modules() -> None:
    modules = re.compile(r"^(## [\w/]+|\| `\w+` \|)", re.MULTILINE)

    for page, text in generated.module_pages().items():
        assert modules.findall(page.read_text()) == modules.findall(text), "run: python -m cmqd_bench.pages"


def test_names_of_the_client_that_moved_are_where_the_changelog_says() -> None:
    section = (ROOT / "CHANGELOG.md").read_text().partition("### Coming from 0.1.0")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| ((?:`\w+`,? ?)+)(?: of `cmqd_client`)? \| `(cmqd_client\.\w+)` \|$", section, re.MULTILINE)
    moved = {name: module for names, module in rows for name in re.findall(r"`(\w+)`", names)}

    assert len(moved) >= 14
    assert [name for name, module in moved.items() if not hasattr(importlib.import_module(module), name)] == []


CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def test_contributing_is_short_and_has_its_lists() -> None:
    text = CONTRIBUTING.read_text()

    assert len(text.splitlines()) <= 90
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Set up, and run tests",
        "Adding an attribute",
        "Adding an operation",
        "Adding an HTTP action",
        "Adding a command of `cmq`",
        "Words",
        "A decision",
    ]


def test_files_and_targets_that_contributing_names_exist() -> None:
    text = CONTRIBUTING.read_text()
    files = re.findall(r"`((?:bench|client|cmqd|docs|protocol|tests)/[\w./-]+)`", text)
    modules = re.findall(r"python -m ([\w.]+)", text)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert len(files) > 30
    assert [file for file in files if "NNNN" not in file and not (ROOT / file).exists()] == []
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) - targets == set()


def test_the_front_line_that_contributing_shows_is_accepted(tmp_path: Path) -> None:
    (front,) = re.findall(r"^``(Status: .+)`` ", CONTRIBUTING.read_text(), re.MULTILINE)
    record = tmp_path / "0001-storage.md"
    record.write_text(f"# 0001 Storage\n\n{front}\n")

    assert read_record(record).status == "accepted"
