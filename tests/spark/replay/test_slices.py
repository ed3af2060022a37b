"""The slices of a replay are sent in order. No Spark."""

from pathlib import Path
from typing import Any

import pytest

from cmqd_log.copy.journal import Journal, Slice, read_journal, write_journal
from pyspark_cmqd import replay as module
from pyspark_cmqd.replay import replay, sink_options, tasks_at_once

pytestmark = pytest.mark.spark


def journal(**changed: Any) -> Journal:
    given: dict[str, Any] = {
        "run": "r-0123456789ab",
        "source": {"path": "/data", "queue": "orders"},
        "position": 40,
        "events": ["sent"],
        "queue": "orders-replay",
        "target_id": 7,
        "server": "cmq://id:***@host:5680",
        "master": "local[2]",
        "slices": [Slice(1, 10, 100), Slice(11, 20, 100)],
    }
    return Journal(**{**given, **changed})


class FakeContext:
    def setJobGroup(self, *_: object, **__: object) -> None:
        pass

    def cancelJobGroup(self, *_: object) -> None:
        pass


class FakeSpark:
    sparkContext = FakeContext()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """First rows of the slices that were sent."""
    rows: list[int] = []

    def send(_spark: Any, _journal: Journal, one: Slice, *_: Any) -> int:
        rows.append(one.first_lsn)
        return one.messages

    monkeypatch.setattr(module, "_send", send)
    return rows


def test_a_slice_that_was_sent_is_on_record_before_anything_else(sent: list[int], tmp_path: Path):
    spark: Any = FakeSpark()
    file = tmp_path / "run.json"
    run = journal()
    write_journal(run, file)

    def tell(one: Slice | None, _: object) -> None:
        if one is not None:
            assert read_journal(file).done == (1 if one.first_lsn == 1 else 2)

    assert not replay(spark, run, file, "url", stopped=lambda: bool(sent), tell=tell)

    kept = read_journal(file)
    assert (kept.done, kept.sent, kept.attempts) == (1, 100, 0)
    assert replay(spark, kept, file, "url", stopped=lambda: False, tell=tell)
    assert sent == [1, 11], "none was sent again"
    assert read_journal(file).is_done


def test_in_order_means_one_request_under_way():
    assert sink_options(journal(), 1) == {
        "queue": "orders-replay",
        "ordered": "true",
        "uniqueDedupIds": "true",
    }
    assert sink_options(journal(parallel=2), 2) == {"queue": "orders-replay"}


@pytest.mark.parametrize(
    ("master", "parallel", "expected"),
    [
        ("local", 8, 1),
        ("local[2]", 8, 2),
        ("local[4]", 3, 3),
        ("local[2,5]", 8, 2),
        ("local-cluster[4,2,1024]", 8, 8),
        ("spark://somewhere:7077", 8, 8),
    ],
)
def test_the_rate_is_shared_by_the_tasks_that_run_at_once(master: str, parallel: int, expected: int):
    assert tasks_at_once(master, parallel) == expected

    options = sink_options(journal(parallel=parallel, rate=900, topic="news", queue=""), expected)
    assert (options["topic"], float(options["maxMessagesPerSecond"])) == ("news", pytest.approx(900 / expected))


def test_all_cores_are_counted(monkeypatch: pytest.MonkeyPatch):
    def three(_: int) -> set[int]:
        return {0, 1, 2}

    monkeypatch.setattr("os.sched_getaffinity", three)

    assert tasks_at_once("local[*]", 8) == 3
