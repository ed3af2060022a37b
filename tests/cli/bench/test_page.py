"""The page of a run: it loads nothing, shows no text as markup, and has a curve for each figure."""

from html.parser import HTMLParser
from xml.etree import ElementTree

from msgspec import structs

from cmq_cli.bench.page import page
from cmq_cli.bench.plans import RatePlan
from cmq_cli.bench.results import Measured, Result, Second, result_of
from cmqd_load.histogram import Histogram


def a_run(name: str, seconds: int) -> tuple[Result, Histogram]:
    plan = RatePlan()
    measured = Measured(seconds=float(seconds), unanswered=0)
    measured.total.latency = Histogram(range(1, 100_000, 37))
    measured.by_second = [Second(float(at), at * 10.0, at * 9.0, 0, 1, 2, 3, 0) for at in range(1, seconds + 1)]
    return result_of(plan, plan.check(), measured, name=name, server={}, started="now"), measured.total.latency


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    text = page([a_run("<script>alert(1)</script>", 5)])
    tags = Tags(text)

    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(tags.names)
    assert not {"src", "href", "onload"} & tags.attributes
    assert "url(" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_page_has_the_curves_of_each_run() -> None:
    text = page([a_run("first", 5), a_run("second", 3)])

    charts = [ElementTree.fromstring(f"<svg{part.partition('</svg>')[0]}</svg>") for part in text.split("<svg")[1:]]
    assert [len(chart.findall("polyline")) for chart in charts] == [2, 3, 1, 2, 3, 1]
    curve = charts[0].findall("polyline")[0].attrib["points"].split()
    assert len(curve) == 5
    heights = [float(point.partition(",")[2]) for point in curve]
    assert heights == sorted(heights, reverse=True)


def test_a_long_run_has_a_bounded_curve_that_keeps_its_peaks() -> None:
    result, histogram = a_run("long", 2_500)
    text = page([(result, histogram)])

    assert max(line.count(",") for line in text.split('points="')[1:2]) < 1_100
    assert "25,000" in text


def test_seconds_in_which_no_message_was_complete_have_no_latency() -> None:
    result, _ = a_run("behind", 4)
    silent = [Second(float(at), 1, 1, 0, None, None, None, 0) for at in range(5, 8)]

    some = page([(structs.replace(result, by_second=[*result.by_second, *silent]), Histogram())])
    none = page([(structs.replace(result, by_second=silent), Histogram())])

    assert [some.count("<svg"), none.count("<svg")] == [2, 1]
    assert len(some.split('points="')[3].partition('"')[0].split()) == 4


def test_percentiles_have_a_tick_for_each_nine() -> None:
    text = page([a_run("nines", 1)])

    assert [part for part in (">0 %<", ">90 %<", ">99 %<", ">99.9 %<", ">99.99 %<") if part not in text] == [
        ">99.99 %<"
    ]


def test_a_run_of_a_second_has_its_percentiles_alone() -> None:
    assert page([a_run("short", 1)]).count("<svg") == 1
