"""The message of a task: headers, queue and time."""

from datetime import UTC, datetime

import pytest

from cmqd_taskiq.sending import MAX_HEADER_BYTES, MAX_HEADERS, delay_of, headers_of, in_utc, queue_of, time_of


def test_headers_name_the_task_and_its_labels() -> None:
    assert headers_of("7f", "shop:charge", {"priority": "5", "trace": "on"}) == {
        "taskiq-id": "7f",
        "taskiq-task": "shop:charge",
        "taskiq-label-priority": "5",
        "taskiq-label-trace": "on",
    }


def test_labels_beyond_the_limits_of_a_message_are_left_out() -> None:
    many = headers_of("7f", "t", {f"label-{number}": str(number) for number in range(100)})
    assert len(many) == MAX_HEADERS
    assert "taskiq-label-label-27" in many
    assert "taskiq-label-label-28" not in many

    long = headers_of("7f", "t", {"long": "ü" * 7_200, "short": "s"})
    assert "taskiq-label-long" not in long  # 14,400 bytes and more
    assert long["taskiq-label-short"] == "s"
    assert sum(len(name.encode()) + len(value.encode()) for name, value in long.items()) <= MAX_HEADER_BYTES


def test_a_label_chooses_the_queue() -> None:
    assert queue_of({}, "taskiq") == "taskiq"
    assert queue_of({"queue_name": "Slow"}, "taskiq") == "Slow"
    assert queue_of({"queue_name": "slow.tasks"}, "taskiq").startswith("slow-tasks--")


def test_a_delay_is_a_number_of_seconds() -> None:
    assert delay_of({}) is None
    assert delay_of({"delay": 2}) == delay_of({"delay": "2.0"}) == 2.0
    with pytest.raises(ValueError, match="label 'delay' is 'soon'"):
        delay_of({"delay": "soon"})


def test_a_time_without_a_zone_is_utc() -> None:
    noon = datetime(2027, 1, 31, 12, tzinfo=UTC)
    assert time_of({}) is None
    assert time_of({"at": "2027-01-31T12:00"}) == time_of({"at": "2027-01-31 13:00+01:00"}) == noon
    assert time_of({"at": noon}) == in_utc(datetime(2027, 1, 31, 12)) == noon
    with pytest.raises(ValueError, match="label 'at' is 'noon'"):
        time_of({"at": "noon"})
