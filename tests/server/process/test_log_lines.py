"""The lines of the log, for people and as JSON."""

import json
from collections.abc import Generator

import pytest
import structlog

from cmqd.server.broker_logger import configure_logs, get_logger
from cmqd_logs.levels import LogFormat, LogLevel


@pytest.fixture(autouse=True)
def defaults_afterwards() -> Generator[None]:
    yield
    structlog.reset_defaults()


def test_a_line_for_people_has_event_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogFormat.CONSOLE, LogLevel.INFO)
    get_logger().info("listening", host="127.0.0.1", port=5680)

    line = capsys.readouterr().err
    assert "[info     ] listening                host=127.0.0.1 port=5680" in line


def test_a_line_for_programs_is_a_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogFormat.JSON, LogLevel.INFO)
    get_logger().info("listening", port=5680)

    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["port"]) == ("listening", "info", 5680)


def test_an_exception_shows_no_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogFormat.CONSOLE, LogLevel.INFO)
    secret_key = "not for the log"
    try:
        raise ValueError("refused")
    except ValueError:
        get_logger().exception("failed")

    text = capsys.readouterr().err
    assert "ValueError: refused" in text
    assert secret_key not in text


def test_lines_below_the_level_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogFormat.JSON, LogLevel.WARNING)
    get_logger().info("listening")

    assert capsys.readouterr().err == ""


def test_without_a_configuration_lines_go_to_the_standard_logger(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    structlog.reset_defaults()
    with caplog.at_level("INFO", "cmqd.broker"):
        get_logger().info("listening", port=5680)
        get_logger().debug("not_told")
    get_logger().error("without_a_handler")

    told = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert told[0] == ("cmqd.broker", "INFO", "event='listening' port=5680")
    assert "not_told" not in caplog.text
    assert capsys.readouterr().out == ""
