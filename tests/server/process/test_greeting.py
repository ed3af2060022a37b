"""The greeting of a broker that starts in a terminal."""

from pathlib import Path

import pytest

from cmqd.log.values import Durability
from cmqd.server.process.greeting import Started, find_cmq, greeting

STARTED = Started(
    "127.0.0.1", 5680, False, Path("/srv/cmqd"), Durability.FSYNC, False, Path("/srv/cmqd/a.context.toml")
)


def test_it_names_address_folder_durability_and_the_next_commands() -> None:
    lines = greeting(STARTED, "cmq").splitlines()

    assert "  address     127.0.0.1:5680" in lines
    assert "  folder      /srv/cmqd" in lines
    assert "  durability  fsync: an answered request survives kill -9 and power loss" in lines
    assert lines[lines.index("Next, in a second terminal:") + 1 :] == [
        "  export CMQ_CONTEXT_FILE=/srv/cmqd/a.context.toml",
        "  cmq queue create orders",
        "  cmq send orders 'first'",
        "  cmq receive orders --delete",
        "Ctrl-C ends the broker in order.",
    ]


def test_it_names_the_address_of_an_http_gateway() -> None:
    assert "  HTTP        off; --http 127.0.0.1:5681 serves the console and the HTTP APIs" in greeting(STARTED, "cmq")
    url = "https://127.0.0.1:5681"
    lines = greeting(STARTED._replace(http=url), "cmq").splitlines()
    assert f"  HTTP        {url}" in lines
    assert f"  console     {url}/console/" in lines
    assert "  cmq console --open    # the console, in a browser" in lines


def test_it_shows_no_url_of_an_http_gateway_on_a_free_port() -> None:
    text = greeting(STARTED._replace(http="http://127.0.0.1:0"), "cmq")

    assert "127.0.0.1:0" not in text
    assert "cmq console" not in text
    assert "  HTTP        on a free port; the log line gateway_ready names it" in text


def test_it_names_the_address_for_tcp_sdks_of_cmq() -> None:
    served = STARTED._replace(http="http://127.0.0.1:5681", cmq_tcp="127.0.0.1:5682")

    assert "CMQ's TCP" not in greeting(STARTED, "cmq")
    assert "  CMQ's TCP   127.0.0.1:5682" in greeting(served, "cmq")
    assert ":0" not in greeting(served._replace(cmq_tcp="127.0.0.1:0"), "cmq")


def test_other_durabilities_promise_less() -> None:
    assert "may be lost with the machine" in greeting(STARTED._replace(durability=Durability.OS), "cmq")
    ephemeral = greeting(STARTED._replace(ephemeral=True), "cmq")
    assert "end with the broker" in ephemeral
    assert "power loss" not in ephemeral


def test_commands_can_be_pasted_whatever_the_names_are() -> None:
    text = greeting(
        STARTED._replace(host="::1", tls=True, context_file=Path("/my data/a.toml")), "/my tools/.venv/bin/cmq"
    )

    assert "address     [::1]:5680, with TLS" in text
    assert "export CMQ_CONTEXT_FILE='/my data/a.toml'" in text
    assert "  '/my tools/.venv/bin/cmq' queue create orders" in text


def test_without_the_command_line_it_says_how_to_install_it() -> None:
    lines = greeting(STARTED, None).splitlines()

    assert lines[lines.index("Next, in a second terminal:") + 1].startswith("  pip install 'cmqd[cli]'")


def test_the_command_line_beside_the_interpreter_comes_before_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("ours", "other", "none"):
        (tmp_path / folder).mkdir()
        if folder != "none":
            (tmp_path / folder / "cmq").touch(mode=0o755)
    ours = str(tmp_path / "ours" / "python")

    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert find_cmq(ours) == str(tmp_path / "ours" / "cmq")
    assert find_cmq(str(tmp_path / "none" / "python")) == "cmq"
    monkeypatch.setenv("PATH", str(tmp_path / "ours"))
    assert find_cmq(ours) == "cmq"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert find_cmq(str(tmp_path / "none" / "python")) is None
