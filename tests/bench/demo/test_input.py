"""Real input as messages."""

import json
import subprocess
from pathlib import Path

import pytest

from cmqd_bench.demo.input import (
    Source,
    SourceError,
    body_of_line,
    history,
    json_lines,
    parse_history,
    repository_source,
    routing_key_of,
    source_lines,
)
from support.cases import each_case

LOG = (
    "\x1e1f\x1fAda\x1f2024-05-01T10:00:00+00:00\x1fAdd: a, b\nA\ta file.py\nM\tb.py\n\n"
    "\x1e2e\x1fBob\x1f2024-05-02T10:00:00+00:00\x1fMerge\n"
)


def test_each_file_changed_in_each_commit_is_a_message():
    entries = list(parse_history(LOG))

    assert [(entry["commit"], entry["change"], entry["path"]) for entry in entries] == [
        ("1f", "A", "a file.py"),
        ("1f", "M", "b.py"),
    ]
    assert entries[0]["author"] == "Ada"
    assert entries[0]["subject"] == "Add: a, b"


def test_messages_go_round():
    source = Source("two", [b"a", b"b"])

    assert [source.body(number) for number in range(5)] == [b"a", b"b", b"a", b"b", b"a"]


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ('{"body": "text"}', b"text"),
        ('{"body": {"a": [1, "é"]}, "tags": "x"}', '{"a":[1,"é"]}'.encode()),
        ('{"other": 1}', b'{"other": 1}'),
        ("[1, 2]", b"[1, 2]"),
        ('"text"', b'"text"'),
    ],
)
def test_a_line_is_its_body_or_itself(line: str, body: bytes):
    assert body_of_line(line, "here") == body


@each_case(
    ("value", "key"),
    [
        ({"path": "cmqd/core/queue.py"}, "cmqd.core.py"),
        ({"path": "README.md"}, "md"),
        ({"file": "a b/c"}, "a_b.c"),
        ({"event": "issues", "body": {"action": "opened"}}, "issues.opened"),
        ({"body": {"action": "created"}}, "created"),
        ({"type": "push", "payload": {"size": 1}}, "push"),
        ({"routing_key": "issues.opened.somebody", "body": {}}, "issues.opened.somebody"),
        ({"routing_key": "#.*"}, "_._"),
        ({"routing_key": "a" * 100}, "a" * 60),
        ({"path": "/".join("abcdefghijklmnopqrstuvwxyz")}, "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o"),
        ({"number": 1}, "message"),
        ([1], "message"),
    ],
)
def test_the_routing_key_names_the_subject_of_a_message(value: object, key: str):
    assert routing_key_of(value) == key


def test_routing_keys_go_round_with_the_bodies():
    source = Source("two", [b"a", b"b"], ["x", "y"])

    assert [source.routing_key(number) for number in range(3)] == ["x", "y", "x"]
    assert Source("one key", [b"a", b"b"]).routing_key(1) == "message"


def test_blank_lines_are_skipped_and_other_separators_do_not_end_a_line(tmp_path: Path):
    file = tmp_path / "input.ndjson"
    file.write_text('{"body": "a\u2028b"}\n\n"c"\n', encoding="utf-8")

    assert json_lines(file).bodies == ["a\u2028b".encode(), b'"c"']


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 1 of"),
        ("\n\n", "nothing in it"),
        ('{"body": ""}', "message 1 has 0 bytes"),
        (json.dumps({"body": "x" * 1_048_577}), "has 1048577 bytes; 1 to 1048576"),
    ],
)
def test_input_that_cannot_be_sent_is_refused(text: str, told: str, tmp_path: Path):
    file = tmp_path / "input.ndjson"
    file.write_text(text)

    with pytest.raises(SourceError, match=told):
        json_lines(file)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(SourceError, match="cannot be read"):
        json_lines(tmp_path / "absent")


def test_a_folder_without_history_gives_its_source_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "a.py").write_text("one\ntwo\n")
    (tmp_path / "picture.png").write_bytes(b"\0")

    assert history(tmp_path) is None
    assert [json.loads(body)["text"] for body in source_lines(tmp_path).bodies] == ["one", "two"]


def test_a_repository_gives_its_history(tmp_path: Path):
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "first.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "Begin")

    source = history(tmp_path)

    assert source is not None
    (entry,) = (json.loads(body) for body in source.bodies)
    assert (entry["author"], entry["subject"], entry["path"]) == ("Ada", "Begin", "first.py")


def test_this_repository_has_something_to_stream():
    assert len(repository_source().bodies) > 10
