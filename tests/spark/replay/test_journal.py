"""Slices, the journal, and messages that may be stored twice. No Spark."""

from pathlib import Path

import pytest

from cmqd_log.copy.journal import (
    REMEMBERED_S,
    Doubt,
    Journal,
    JournalError,
    Meter,
    Slice,
    Slicer,
    clear_up,
    journal_file,
    journal_folder,
    locked,
    new_run,
    read_journal,
    slice_messages,
    states_file,
    write_journal,
)
from cmqd_log.message_states.states_at import read_states, write_states

NOW = 1_795_000_000.0


def journal(*slices: Slice, master: str = "local[2]") -> Journal:
    return Journal(
        run="r-0123456789ab",
        source={"path": "/data", "queue": "orders"},
        position=40,
        events=["sent"],
        queue="orders-replay",
        target_id=7,
        server="cmq://id:***@host:5680",
        master=master,
        slices=list(slices or (Slice(1, 10, 100, 1000, 5), Slice(11, 20, 100, 1000, 6))),
    )


def cut(
    most: int, rows: list[tuple[int, int]], gaps: list[tuple[int, int]] | None = None
) -> list[tuple[int, int, int]]:
    slicer = Slicer(most, gaps or [])
    for lsn, messages in rows:
        slicer.add(lsn, messages, messages * 10)
    return [(one.first_lsn, one.last_lsn, one.messages) for one in slicer.slices()]


def test_slices_are_whole_rows():
    assert cut(10, [(1, 4), (2, 4), (3, 4), (7, 4)]) == [(1, 2, 8), (3, 7, 8)]
    assert cut(10, [(1, 25), (2, 3)]) == [(1, 1, 25), (2, 2, 3)]
    assert cut(10, []) == []


def test_a_row_that_comes_in_several_parts_is_not_cut():
    assert cut(10, [(1, 6), (1, 6), (2, 6)]) == [(1, 1, 12), (2, 2, 6)]


def test_no_slice_spans_rows_that_are_gone():
    assert cut(100, [(1, 1), (2, 1), (9, 1), (10, 1)], [(3, 8)]) == [(1, 2, 2), (9, 10, 2)]
    assert cut(100, [(5, 1), (6, 1)], [(1, 4)]) == [(5, 6, 2)]


def test_a_slice_is_a_second_of_the_rate_and_a_slice_of_a_slow_run_ten():
    assert slice_messages(None) == 50_000
    assert slice_messages(2_000) == 2_000
    assert slice_messages(100) == 100
    assert slice_messages(20) == 100
    assert slice_messages(5) == 50
    assert slice_messages(1_000_000) == 50_000
    assert slice_messages(100, 20) == 20
    assert slice_messages(100, 2_000) == 1_000
    assert slice_messages(None, 70_000_000) == 1_000_000


def test_what_is_sent_once_is_stored_once_however_long_it_takes():
    run = journal()
    run.begin(NOW)

    assert run.end(100, 900.0, NOW + 900) is None
    assert (run.done, run.sent, run.sent_bytes, run.attempts) == (1, 100, 1000, 0)


def test_a_slice_sent_again_soon_is_stored_once():
    run = journal()
    run.begin(NOW)
    run.begin(NOW + 100)

    assert run.end(100, 1.0, NOW + REMEMBERED_S) is None


@pytest.mark.parametrize("ended", [NOW + REMEMBERED_S + 1, NOW - 1])
def test_what_is_sent_again_late_or_after_a_jump_of_the_clock_is_in_doubt(ended: float):
    run = journal()
    run.begin(NOW)
    run.begin(NOW + 1)

    doubt = run.end(100, 1.0, ended)

    assert doubt == Doubt(1, 10, 100, ended - NOW)
    assert str(doubt) == "rows 1 to 10, up to 100 messages"
    assert run.doubts == [doubt]
    run.begin(ended)
    assert run.end(100, 1.0, ended + 1) is None, "only that one"
    assert run.is_done


@pytest.mark.parametrize(
    ("master", "again"),
    [
        ("", False),
        ("local", False),
        ("local[2]", False),
        ("local[*]", False),
        ("local[2,4]", True),
        ("local[*,4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://somewhere:7077", True),
    ],
)
def test_where_spark_runs_a_task_again_a_slow_slice_is_in_doubt(master: str, again: bool):
    run = journal(master=master)
    run.begin(NOW)

    assert (run.end(100, 900.0, NOW + 900) is not None) is again


def test_a_journal_is_read_as_it_was_written(tmp_path: Path):
    file = tmp_path / "state" / "run.json"
    run = journal()
    write_journal(run, file)
    run.begin(NOW)
    run.end(99, 1.5, NOW + 2)
    write_journal(run, file)

    assert read_journal(file) == run
    assert [path.name for path in file.parent.iterdir()] == ["run.json"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path):
    file = tmp_path / "run.json"
    with pytest.raises(JournalError, match="does not exist"):
        read_journal(file)
    file.write_text("{}")
    with pytest.raises(JournalError, match="not the journal of a replay"):
        read_journal(file)
    run = journal()
    run.format = 2
    write_journal(run, file)
    with pytest.raises(JournalError, match="format 2"):
        read_journal(file)
    with pytest.raises(JournalError, match="cannot be written"):
        write_journal(run, file / "below")


def test_one_process_works_on_a_run(tmp_path: Path):
    file = tmp_path / "run.json"
    with locked(file), pytest.raises(JournalError, match="another process is carrying out this run"), locked(file):
        pass
    with locked(file):
        pass


def test_of_a_run_that_is_done_only_the_journal_is_kept(tmp_path: Path):
    file = tmp_path / "run.json"
    run = journal(Slice(1, 10, 100))
    write_states(states_file(file), {})
    assert states_file(file).stat().st_mode & 0o077 == 0
    with locked(file):
        write_journal(run, file)
        clear_up(run, file)
        assert states_file(file).exists(), "it is not done"
        run.end(100, 1.0, NOW)
        clear_up(run, file)

    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_states_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "run.json.states"
    write_states(file, {1: {}})

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_states(file, {2: {}})

    assert read_states(file) == {1: {}}
    assert list(tmp_path.iterdir()) == [file]


def test_a_run_is_named_or_is_a_file(tmp_path: Path):
    run = new_run()
    assert journal_file(run, tmp_path) == tmp_path / f"{run}.json"
    assert journal_file("some/where.json", tmp_path) == Path("some/where.json")
    assert journal_folder({"XDG_STATE_HOME": "/state"}) == Path("/state/cmq/replays")
    assert journal_folder({}).parts[-4:] == (".local", "state", "cmq", "replays")
    assert len(f"{run}:Msg-{0:016x}") <= 64


def test_rate_and_time_that_is_left():
    begun = 50.0
    meter = Meter(10_000, 0, begun)
    assert str(meter) == ""

    meter.advance(1_000, begun + 1)
    assert str(meter) == "1,000/s, 0:09 left"
    for second in range(2, 60):
        meter.advance(10, begun + second)
    assert 9 < meter.rate < 11, "what was long ago does not count"
    assert Meter(10**9).rate == 0
