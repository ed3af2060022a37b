"""The benchmark of matching: its sets are as described, and its report has the fields that readers need."""

from cmqd.core.filter_matching import check_binding_keys, check_routing_key, check_tags
from cmqd_bench.commands.command_line import build_parser
from cmqd_bench.micro.match import (
    SUBSCRIBERS,
    TARGETS_US,
    WARM_LABELS,
    adversarial_keys,
    match_lines,
    measure_match,
    realistic_keys,
    tag_set,
)


def test_the_command_is_understood():
    arguments = build_parser().parse_args(["match", "--json"])

    assert arguments.scenario == "match"
    assert arguments.json


def test_sets_are_legal_and_always_the_same():
    filters, messages = tag_set(100)
    assert (filters, messages) == tag_set(100)
    assert len(filters) == SUBSCRIBERS
    assert all(len(check_tags(tags, 5)) == 5 for tags in filters)
    assert {len(check_tags(tags, 10)) for tags in messages} == set(range(1, 11))
    assert len({tuple(tags) for tags in messages}) == 100

    for keys, again in zip(
        [realistic_keys(100), *adversarial_keys(100)], [realistic_keys(100), *adversarial_keys(100)], strict=True
    ):
        assert keys == again
        assert len(keys.binding_keys) == SUBSCRIBERS
        assert all(len(own) == 5 and check_binding_keys(own) for own in keys.binding_keys)
        assert len({check_routing_key(key) for key in keys.routing_keys}) == 100
        words = 8 if keys.name == "realistic" else 16
        assert {len(key.split(".")) for key in keys.routing_keys} == {words}


def test_the_report_has_every_figure():
    report = measure_match(rounds=1, messages=WARM_LABELS)

    for name in (*TARGETS_US, "key_cold_worst_us", "rebuild_ms"):
        assert report[name] > 0
    assert report["key_cold_worst_us"] == max(report["worst_sets_us"].values())
    assert all(0 < number <= SUBSCRIBERS for number in report["matched"].values())
    assert report["conditions"]["cpu"]
    shown = "\n".join(match_lines(report))
    assert f"{report['key_cold_us']:.3f}" in shown
    assert f"{report['rebuild_ms']:.3f}" in shown
