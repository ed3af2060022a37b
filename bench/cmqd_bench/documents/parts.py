"""The parts of README and docs/benchmarks.md that are made from the newest files of results: tables."""

from cmqd_bench.curves.cliffs import judgement
from cmqd_bench.documents.findings import compared, disturbed_share, gaps_told, name_of, remarks, summary, works
from cmqd_bench.documents.tables import (
    curve_table,
    figure,
    mark,
    markdown,
    overview_table,
    step_text,
    times,
    titles,
    turns_text,
)
from cmqd_bench.figures.results import CMQD, REFERENCE_PEER, Point, Results, Scenario, points


def conditions_text(results: Results) -> str:
    """Return the conditions as a paragraph."""
    told = results.conditions
    text = (
        f"Measured {told.started[:10]} at commit `{told.commit or 'unknown'}`: {told.cpu}, {told.cores} cores shared by"
        f" brokers and load, Linux {told.kernel}, Python {told.python}, {told.file_system}; {told.load}, bodies of"
        f" {told.body} bytes, loopback; {turns_text(results)}."
    )
    if share := disturbed_share(results):
        text += f" Other programs used the machine beside {share:.0%} of the measurements (marked *)."
    return text


def short_peers_table(results: Results) -> str:
    """Return the table of README: cmqd and the reference peer."""
    names = titles(results)
    heads = [
        "work",
        "cmqd, messages/s",
        "cmqd, µs",
        f"{names.get(REFERENCE_PEER, 'reference')}, µs",
        "CPU ratio",
        "p50 ratio",
    ]
    rows: list[list[str]] = []
    for scenario in works(results):
        by_name = {each.name: each for each in compared(results, scenario)}
        reference = by_name.get(REFERENCE_PEER)
        for name, own in by_name.items():
            if own.point.peer == CMQD and reference is not None:
                work = scenario.title if name == CMQD else f"{scenario.title}, {own.point.build} build"
                rows.append(
                    [
                        work + mark(scenario, own.point, reference.point),
                        figure(own.rate),
                        figure(own.cpu_us),
                        figure(reference.cpu_us),
                        times(own.cpu_ratio),
                        times(own.p50_ratio),
                    ]
                )
    return markdown((heads, rows))


def peers_text(results: Results) -> str:
    """Return the part of README: the sentences, the table, the conditions."""
    told = " ".join(
        [
            *summary(results),
            "CPU is that of all processes of a broker. A ratio over 1 means that cmqd needs more.",
            conditions_text(results),
        ]
    )
    return f"{short_peers_table(results)}\n\n{told}"


def all_peers_text(results: Results) -> str:
    """Return the part of docs/benchmarks.md: CPU per message of all peers, and their durability."""
    told = gaps_told(results)
    durability = [f"- {peer.title} {peer.version}: {peer.durability}" for peer in results.peers]
    return "\n\n".join(
        [
            *summary(results),
            short_peers_table(results),
            "CPU per message of all brokers, µs:",
            markdown(overview_table(results)),
            "\n".join([*durability, *(f"- {remark}" for remark in remarks(results))]),
            *(["Figures that are missing:\n\n" + "\n".join(f"- {text}" for text in told)] if told else []),
            conditions_text(results),
        ]
    )


def curves_text(results: Results) -> str:
    """Return the part of docs/benchmarks.md about scale: the ends of every curve, the cliffs, the conditions."""
    heads = ["curve", "from", "CPU µs", "p50 ms", "to", "CPU µs", "p50 ms"]
    rows: list[list[str]] = []
    for scenario in results.scenarios:
        own = sorted(_own(results, scenario), key=lambda point: point.x)
        if scenario.is_curve and own:
            cells = [scenario.title]
            for end in (own[0], own[-1]):
                cells += [
                    f"{step_text(scenario, end.x)}" + (" *" if end.is_disturbed else ""),
                    figure(end.spread(lambda row: row.cpu_us)),
                    figure(end.spread(lambda row: row.p50_ms)),
                ]
            rows.append(cells)
    return "\n\n".join([markdown((heads, rows)), " ".join(judgement(results)), conditions_text(results)])


def _own(results: Results, scenario: Scenario) -> list[Point]:
    return [point for point in points(results.rows) if point.scenario == scenario.name and name_of(point) == CMQD]


def curve_tables(results: Results) -> str:
    """Return the tables of all steps of all curves."""
    return "\n\n".join(
        f"### By {scenario.x}\n\n{scenario.title.capitalize()}.\n\n{markdown(curve_table(scenario, own))}"
        for scenario in results.scenarios
        if (own := _own(results, scenario))
    )
