"""Options of the sink, and the roles of columns. No Spark."""

from pathlib import Path

import pytest

from cmqd_log.errors import OptionError
from pyspark_cmqd.sending.sink_options import parse_sink_options
from pyspark_cmqd.sending.sink_requests import ColumnError, chosen_columns
from support.cases import each_case

URL = "cmq://id:key@somewhere:5681"

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No URL and no context in reach."""
    for name in ("CMQ_URL", "CMQ_CONTEXT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_options_have_defaults_and_names_in_any_case() -> None:
    options = parse_sink_options({"URL": URL, "Queue": "orders", "checkpointLocation": "x", "path": "y"})

    assert (options.address.host, options.address.port) == ("somewhere", 5681)
    assert (options.queue, options.topic, options.target) == ("orders", "", "queue 'orders'")
    assert (options.batch_size, options.in_flight, options.retries, options.request_timeout) == (256, 16, 10, 10.0)
    assert options.columns == {name: name for name in ("body", "headers", "delay", "tags", "routing_key", "dedup_id")}
    assert options.named == {"body"}


def test_all_options_are_taken() -> None:
    options = parse_sink_options(
        {
            "url": URL,
            "topic": "news",
            "bodyColumn": "b",
            "tagsColumn": "t",
            "dedupidcolumn": "d",
            "writeId": "monday",
            "batchSize": "10",
            "inFlight": "2",
            "retries": "0",
            "requestTimeout": "2.5",
            "maxMessagesPerSecond": "0.5",
        }
    )

    assert options.target == "topic 'news'"
    assert options.named == {"body", "tags", "dedup_id"}
    assert (options.columns["body"], options.columns["headers"]) == ("b", "headers")
    assert options.write_id == "monday"
    assert (options.batch_size, options.in_flight, options.retries, options.request_timeout) == (10, 2, 0, 2.5)
    assert options.max_rate == 0.5


@each_case(
    ("given", "option"),
    [
        ({"url": URL}, "queue"),
        ({"url": URL, "queue": "q", "topic": "t"}, "topic"),
        ({"url": URL, "queue": ""}, "queue"),
        ({"url": URL, "queue": "q", "tagsColumn": "t"}, "tagsColumn"),
        ({"url": URL, "topic": "t", "delayColumn": "d"}, "delayColumn"),
        ({"url": URL, "queue": "q", "context": "x"}, "context"),
        ({"url": "http://x", "queue": "q"}, "url"),
        ({"queue": "q"}, "url"),
        ({"url": URL, "queue": "q", "batchSize": "257"}, "batchSize"),
        ({"url": URL, "queue": "q", "batchSize": "0"}, "batchSize"),
        ({"url": URL, "queue": "q", "inFlight": "x"}, "inFlight"),
        ({"url": URL, "queue": "q", "retries": "-1"}, "retries"),
        ({"url": URL, "queue": "q", "requestTimeout": "0"}, "requestTimeout"),
        ({"url": URL, "queue": "q", "requestTimeout": "nan"}, "requestTimeout"),
        ({"url": URL, "queue": "q", "writeId": "x" * 33}, "writeId"),
        ({"url": URL, "queue": "q", "que": "x"}, "que"),
        ({"server": URL, "queue": "q"}, "server"),
        ({"url": URL, "queue": "q", "inFlight": URL}, "inFlight"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_sink_options(given)

    assert refused.value.option == option
    assert "key@" not in str(refused.value)


def test_the_server_is_found_as_cmq_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config" / "cmq" / "contexts.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'current = "here"\n[contexts.here]\nurl = "{URL}"\n[contexts.there]\nurl = "cmq://a:b@there"\n')
    other = tmp_path / "other.toml"
    other.write_text('[contexts.far]\nurl = "cmq://a:b@far"\n')

    def host(**given: str) -> str:
        return parse_sink_options({"queue": "q", **given}).address.host

    assert host() == "somewhere"
    assert host(context="there") == "there"
    assert host(contextFile=str(other), context="far") == "far"
    with pytest.raises(OptionError, match="has no current context"):
        host(contextFile=str(other))
    with pytest.raises(OptionError, match="'nowhere'"):
        host(context="nowhere")
    with pytest.raises(OptionError, match="contextFile"):
        host(contextFile=str(tmp_path / "none"))
    monkeypatch.setenv("CMQ_CONTEXT_FILE", str(other))
    assert host(context="far") == "far"
    monkeypatch.setenv("CMQ_URL", "cmq://a:b@variable")
    assert host() == "variable"
    assert host(url=URL) == "somewhere"


ROLES = ("body", "headers", "tags", "routing_key", "dedup_id")
COLUMNS = {role: role for role in ROLES}


def test_columns_that_there_are_and_that_the_target_knows_are_taken() -> None:
    types = {"body": "string", "headers": "map<string,string>", "delay": "int", "other": "struct<a:int>"}

    assert chosen_columns(types, COLUMNS, frozenset({"body"}), ROLES) == {"body": "body", "headers": "headers"}


@pytest.mark.parametrize(
    ("types", "column", "text"),
    [
        ({"text": "string"}, "body", "is missing"),
        ({"body": "int"}, "body", "has type int; the column of body must be binary or string"),
        ({"body": "binary", "tags": "string"}, "tags", "must be array<string>"),
        ({"body": "binary", "dedup_id": "double"}, "dedup_id", "a whole number"),
    ],
)
def test_a_column_that_cannot_be_sent_is_named(types: dict[str, str], column: str, text: str) -> None:
    with pytest.raises(ColumnError, match=text) as refused:
        chosen_columns(types, COLUMNS, frozenset({"body"}), ROLES)
    assert refused.value.column == column
