"""The slices of a replay with a master are sent in order. No Spark."""

from pathlib import Path
from typing import Any

import pytest

from cmqd_log.copy.journal import Journal, Slice, read_journal, write_journal
from pyspark_cmqd import replay as module
from pyspark_cmqd.replay import replay, task_target, tasks_at_once

pytestmark = pytest.mark.spark

URL = "cmq://id:key@127.0.0.1:5680"


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


def quiet(*_: object) -> None:
    """Tell no progress."""


class FakeReader:
    """Each slice is a part with a single task: its first row."""

    def __init__(self, *_: object) -> None:
        pass

    def parts(self, one: Slice, count: int) -> list[list[int]]:
        return [[one.first_lsn]]


class FakeTime:
    """A clock that only sleeps move."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_764_370_000 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeContext:
    master = "local[2]"


class FakeSpark:
    sparkContext = FakeContext()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, clock: FakeTime) -> list[tuple[int, float]]:
    """First rows of the slices that were sent, with their times."""
    rows: list[tuple[int, float]] = []

    def send(_context: Any, parts: list[list[int]], *_: Any) -> int:
        rows.append((parts[0][0], clock.now))
        return 100

    monkeypatch.setattr(module, "SliceReader", FakeReader)
    monkeypatch.setattr(module, "_send", send)
    return rows


def test_a_slice_that_was_sent_is_on_record_before_anything_else(sent: list[tuple[int, float]], tmp_path: Path):
    spark: Any = FakeSpark()
    file = tmp_path / "run.json"
    run = journal()
    write_journal(run, file)

    def tell(one: Slice | None, _: object) -> None:
        if one is not None:
            assert read_journal(file).done == (1 if one.first_lsn == 1 else 2)

    assert not replay(spark, run, file, URL, stopped=lambda: bool(sent), tell=tell)

    kept = read_journal(file)
    assert (kept.done, kept.sent, kept.attempts) == (1, 100, 0)
    assert replay(spark, kept, file, URL, stopped=lambda: False, tell=tell)
    assert [row for row, _ in sent] == [1, 11], "none was sent again"
    assert read_journal(file).is_done


def test_a_slice_is_named_before_it_is_sent_and_is_under_way_after_a_stop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    spark: Any = FakeSpark()
    file = tmp_path / "run.json"

    def cancelled(*_: Any) -> None:
        assert read_journal(file).attempts == 1

    monkeypatch.setattr(module, "SliceReader", FakeReader)
    monkeypatch.setattr(module, "_send", cancelled)

    assert not replay(spark, journal(), file, URL, stopped=lambda: False, tell=quiet)
    assert (read_journal(file).done, read_journal(file).attempts) == (0, 1)


def test_the_slices_hold_the_rate_together(sent: list[tuple[int, float]], tmp_path: Path):
    """A task begins with its first request at once, so a slice waits for the time of the slice before."""
    spark: Any = FakeSpark()
    run = journal(rate=40, slices=[Slice(1, 10, 100), Slice(11, 20, 100), Slice(21, 30, 100)])

    assert replay(spark, run, tmp_path / "run.json", URL, stopped=lambda: False, tell=quiet)

    assert [round(when, 6) for _, when in sent] == [50.0, 52.5, 55.0]


def test_a_stop_ends_the_wait_for_the_rate(sent: list[tuple[int, float]], clock: FakeTime, tmp_path: Path):
    spark: Any = FakeSpark()

    assert not replay(spark, journal(rate=1), tmp_path / "run.json", URL, stopped=lambda: clock.now > 60, tell=quiet)

    assert len(sent) == 1
    assert clock.now < 61


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

    target = task_target(journal(parallel=parallel, rate=900, topic="news", queue=""), URL, expected)
    assert (target.topic, target.max_rate) == ("news", pytest.approx(900 / expected))
    assert (target.ordered, target.in_flight) == (False, 16)


def test_a_single_task_keeps_the_order():
    target = task_target(journal(), URL, 1)

    assert (target.ordered, target.tied, target.max_rate) == (True, True, 0.0)


def test_all_cores_are_counted(monkeypatch: pytest.MonkeyPatch):
    def three(_: int) -> set[int]:
        return {0, 1, 2}

    monkeypatch.setattr("os.sched_getaffinity", three)

    assert tasks_at_once("local[*]", 8) == 3


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Spark's Java process ended during the run"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_a_full_disk_is_not_taken_for_the_end_of_java(error: OSError, text: str):
    """The driver writes the parts of a job to a file."""
    assert text in module._why(error)  # pyright: ignore[reportPrivateUsage]
