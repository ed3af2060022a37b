"""Settings: a table, three sources, and refusals that name setting, value, range and source."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

import cmqd
from cmqd.__main__ import effective_settings, main
from cmqd.log.values import Redundancy
from cmqd.server.process.advertised_address import advertised_address
from cmqd.settings import SETTINGS, Durability, SettingError, Settings, ignored_variables, load, parse_address
from support.cases import each_case

ROOT = Path(__file__).parents[3]


def test_a_later_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "cmqd.toml"
    file.write_text('region = "file"\nmax_connections = 1\nheartbeat_ms = 2000\n')

    settings = load(
        file=file,
        environment={"CMQD_MAX_CONNECTIONS": "2", "CMQD_HEARTBEAT_MS": "3000"},
        flags={"heartbeat_ms": "4000", "data": None},
    )

    assert (settings.region, settings.max_connections, settings.heartbeat_ms) == ("file", 2, 4000)
    assert settings.data == Path("data")


def test_a_table_of_the_file_may_group_settings(tmp_path: Path) -> None:
    file = tmp_path / "cmqd.toml"
    file.write_text('[broker]\nephemeral = true\ndurability = "os"\n[limits]\nmax_connections = 7\n')

    settings = load(file=file, environment={})

    assert (settings.ephemeral, settings.durability, settings.max_connections) == (True, Durability.OS, 7)


@each_case(
    ("name", "value", "allowed"),
    [
        ("max_connections", "-1", "a whole number from 0 to"),
        ("max_connections", "many", "a whole number"),
        ("authentication_timeout_ms", "60000", "from 100 to 5000"),
        ("durability", "perhaps", "fsync or os"),
        ("ephemeral", "maybe", "true or false"),
        ("log_format", "xml", "console or json"),
        ("listen", "localhost:99999", "0 to 65535"),
        ("listen", "::1", "brackets"),
        ("listen", ":5680", "host is missing"),
        ("http", ":5681", "host is missing"),
        ("advertise", "::1", "brackets"),
        ("advertise", "mq.example.com:0", "1 to 65535"),
        ("region", "Île", "ASCII"),
        ("push_user_agent", "shop\r\nx-cmq-message-id: 1", "printable ASCII"),
        ("push_user_agent", "x" * 257, "256"),
        ("data", "", "a path"),
        ("pause_pending_bytes", "70000", "at least busy_pending_bytes"),
        ("tls_key", "key.pem", "come together"),
    ],
)
def test_a_refused_value_is_named_with_its_range_and_source(name: str, value: str, allowed: str) -> None:
    variable = SETTINGS[name].variable

    with pytest.raises(SettingError) as refusal:
        load(environment={variable: value})

    text = str(refusal.value)
    assert allowed in text
    if name != "tls_key":
        assert (refusal.value.name, variable in text) == (name, True)
        assert repr(value) in text or value in text


@pytest.mark.parametrize("content", ["max_connections = true", "max_connections = 1.5", "region = 3"])
def test_a_value_of_the_wrong_type_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "cmqd.toml"
    file.write_text(content)

    with pytest.raises(SettingError, match=r"cmqd\.toml"):
        load(file=file, environment={})


def test_an_unknown_name_in_the_file_is_refused_with_a_guess(tmp_path: Path) -> None:
    file = tmp_path / "cmqd.toml"
    file.write_text("max_conections = 5\n")

    with pytest.raises(SettingError, match="did you mean max_connections"):
        load(file=file, environment={})


def test_a_missing_file_and_one_that_is_not_toml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        load(file=tmp_path / "none.toml", environment={})
    (tmp_path / "bad.toml").write_text("= = =")
    with pytest.raises(SettingError, match="is not TOML"):
        load(file=tmp_path / "bad.toml", environment={})


@each_case(
    ("name", "text", "value"),
    [
        ("heartbeat_ms", "30s", 30_000),
        ("heartbeat_ms", "30 s", 30_000),
        ("heartbeat_ms", "2500ms", 2_500),
        ("heartbeat_ms", "1.5m", 90_000),
        ("heartbeat_ms", "45000", 45_000),
        ("segment_age_ms", "7d", 7 * 86_400_000),
        ("segment_age_ms", "2w", 14 * 86_400_000),
        ("drain_timeout_ms", "0.5s", 500),
        ("segment_bytes", "1GiB", 1 << 30),
        ("segment_bytes", "1 GiB", 1 << 30),
        ("segment_bytes", "2gib", 2 << 30),
        ("segment_bytes", "1.5MiB", 3 << 19),
        ("segment_bytes", "2MB", 2_000_000),
        ("segment_bytes", "2097152B", 2 << 20),
        ("segment_bytes", "2097152", 2 << 20),
    ],
)
def test_times_and_sizes_take_units_in_every_source(tmp_path: Path, name: str, text: str, value: int) -> None:
    file = tmp_path / "cmqd.toml"
    file.write_text(f'{name} = "{text}"\n')

    for settings in (
        load(file=file, environment={}),
        load(environment={SETTINGS[name].variable: text}),
        load(environment={}, flags={name: text}),
    ):
        assert getattr(settings, name) == value


@each_case(
    ("name", "text", "allowed"),
    [
        ("heartbeat_ms", "1GiB", "ms, s, m, h, d or w"),
        ("heartbeat_ms", "30 seconds", "a number with ms, s, m, h, d or w"),
        ("heartbeat_ms", "1s1s", "from 1000 to 3600000"),
        ("heartbeat_ms", "-30s", "from 1s to 1h"),
        ("heartbeat_ms", "2h", "from 1s to 1h"),
        ("heartbeat_ms", "1000.5ms", "from 1s to 1h"),
        ("heartbeat_ms", "5M", "ms, s, m, h, d or w"),
        ("heartbeat_ms", "1e3", "from 1s to 1h"),
        ("segment_bytes", "30s", "KiB, MiB, GiB"),
        ("segment_bytes", "1G", "KiB, MiB, GiB"),
        ("segment_bytes", "1KiB", "from 1MiB to 16GiB"),
        ("max_connections", "30s", "a whole number from 0 to"),
    ],
)
def test_a_unit_that_does_not_belong_there_is_refused(name: str, text: str, allowed: str) -> None:
    with pytest.raises(SettingError, match=name) as refusal:
        load(environment={SETTINGS[name].variable: text})

    assert allowed in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('[limits]\nregion = "north"\n', r"limits\.region = 'north' is not allowed: region belongs to \[broker\]"),
        ("[limit]\nmax_connections = 1\n", r"no table \[limit\]; did you mean \[limits\]"),
        ("[limits]\nmax_conections = 1\n", "did you mean max_connections"),
        ("limits = 1\n", r"limits is a table: \[limits\]"),
        ("max_connections = 1\n[limits]\nmax_connections = 2\n", "given twice"),
        ("[limits.more]\nmax_connections = 2\n", r"limits\.more"),
    ],
)
def test_a_misplaced_name_in_the_file_is_refused(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "cmqd.toml"
    file.write_text(content)

    with pytest.raises(SettingError, match=text):
        load(file=file, environment={})


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cmqd.toml"
    file.write_bytes(b'region = "\xff"\n')

    with pytest.raises(SettingError, match="is not TOML"):
        load(file=file, environment={})


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("CMQD_HEARTBEAT", "CMQD_HEARTBEAT_MS"),
        ("CMQD_MAX_CONECTIONS", "CMQD_MAX_CONNECTIONS"),
        ("CMQD_LISTEN_", "CMQD_LISTEN"),
        ("CMQD_PORTS", None),
        ("CMQD_", None),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_setting(variable: str, nearest: str | None) -> None:
    with pytest.raises(SettingError, match=f"environment: {variable} = ") as refusal:
        load(environment={variable: "cmq://AKID:secret@host", "PATH": "/bin"})

    assert "secret" not in str(refusal.value)
    assert nearest is None or f"did you mean {nearest}" in str(refusal.value)


def test_variables_that_a_container_platform_makes_for_a_service_are_ignored_and_named() -> None:
    environment = {
        "CMQD_SERVICE_HOST": "10.0.0.1",
        "CMQD_SERVICE_PORT": "5680",
        "CMQD_PORT": "tcp://10.0.0.1:5680",
        "CMQD_PORT_5680_TCP_ADDR": "10.0.0.1",
    }

    assert load(environment=environment) == Settings()
    assert ignored_variables(environment) == sorted(environment)
    assert ignored_variables({"CMQD_REGION": "x", "HOME": "/"}) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://role:s3cret@a,b:5433/db", "postgresql://role:...@a,b:5433/db"),
        ("postgresql://role:s3:cr@et@a/db", "postgresql://role:...@a/db"),
        ("postgresql://a:5432,b:5433/db?user=role&password=s3cret&port=1", None),
        ("host=a user=role password='s3cret with spaces' port=1", "host=a user=role password=... port=1"),
        ("postgresql://role@a:5432/db", "postgresql://role@a:5432/db"),
    ],
)
def test_the_password_of_the_engine_is_never_shown(url: str, shown: str | None) -> None:
    table = Settings(redundancy=Redundancy.POSTGRESQL, engine_url=url).as_table()

    assert table["engine_url"] == (shown or url.replace("s3cret", "..."))


def test_addresses() -> None:
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_address("example") == ("example", 5680)
    assert parse_address("[::1]:7") == ("::1", 7)
    assert parse_address("[::1]") == ("::1", 5680)
    assert parse_address("example", default_port=7) == ("example", 7)


@pytest.mark.parametrize(
    ("advertise", "bound", "told"),
    [
        ("", ("127.0.0.1", 99), "127.0.0.1:99"),
        ("", ("::1", 99), "[::1]:99"),
        ("", ("0.0.0.0", 99), "this-machine:99"),
        ("", ("::", 99), "this-machine:99"),
        ("mq.example.com", ("0.0.0.0", 99), "mq.example.com:99"),
        ("mq.example.com:5681", ("127.0.0.1", 99), "mq.example.com:5681"),
        ("[2001:db8::1]:5681", ("::", 99), "[2001:db8::1]:5681"),
    ],
)
def test_the_address_that_clients_are_told_is_one_that_they_can_use(
    advertise: str, bound: tuple[str, int], told: str
) -> None:
    assert advertised_address(advertise, bound, lambda: "this-machine") == told


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().region = "other"  # type: ignore[misc]


def test_every_setting_has_a_meaning_and_numbers_have_a_range() -> None:
    for info in SETTINGS.values():
        assert info.text, info.name
        if info.kind is int:
            assert isinstance(info.default, int)
            assert info.low is not None
            assert info.high is not None
            assert info.low <= info.default <= info.high
            assert re.search(
                r"_(ms|bytes|records|receives|connections?|account|queue|connection|endpoint|pushes|processes)$|^shard$",
                info.name,
            )


def test_config_prints_every_setting_as_toml_that_loads_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["config", "--region", "north", "--max-connections", "12"]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "printed.toml"
    file.write_text(printed)

    assert load(file=file, environment={}) == load(environment={}, flags={"region": "north", "max_connections": "12"})
    assert all(name in printed for name in SETTINGS)
    assert tomllib.loads(effective_settings(Settings()))["broker"]["region"] == "local"


def test_a_wrong_flag_ends_with_exit_code_2_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--heartbeat-ms", "1"]) == 2

    assert "flag --heartbeat-ms: heartbeat_ms = '1' is not allowed" in capsys.readouterr().err


def test_the_version_is_declared_once_and_has_a_section_in_the_changelog(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])

    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    sections = re.findall(r"^## (\d+\.\d+\.\d+) ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert end.value.code == 0
    assert capsys.readouterr().out.strip() == f"cmqd {cmqd.__version__}"
    assert "version" not in document["project"]
    assert document["tool"]["hatch"]["version"] == {"path": "cmqd/__init__.py"}
    assert sections[0] == cmqd.__version__
