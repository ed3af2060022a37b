"""The benchmark of matching: its sets are as described, and its works match each message."""

from cmqd.core.filter_matching import check_binding_keys, check_routing_key, check_tags
from cmqd_bench.micro.match import (
    REBUILDS,
    SUBSCRIBERS,
    WARM_LABELS,
    adversarial_keys,
    match_micros,
    realistic_keys,
    tag_set,
)


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


def test_a_work_matches_each_of_its_messages():
    items = {micro.name: micro.prepare()() for micro in match_micros(WARM_LABELS)}

    assert set(items.values()) == {WARM_LABELS, REBUILDS}
    assert [name for name, count in items.items() if count == REBUILDS] == [
        "match: tags, rebuild",
        "match: keys, rebuild",
    ]
