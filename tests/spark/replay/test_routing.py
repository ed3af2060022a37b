"""Routing keys are matched as in the broker."""

from hypothesis import example, given
from hypothesis import strategies as st

from cmqd.core.filter_matching import KeyRules, Matcher
from cmqd_log.reading.tasks import routing_pattern

keys = st.lists(st.sampled_from(["a", "b", "a+", "", "é"]), min_size=1, max_size=5).map(".".join).filter(bool)
patterns = (
    st.lists(st.sampled_from(["a", "b", "a+", "", "*", "#", "#x"]), min_size=1, max_size=5).map(".".join).filter(bool)
)


@given(patterns, keys)
@example("1.*.0", "1.any.0")
@example("1.#.0", "1.2.3.4.4.2.2.0")
@example("1.#.0", "1.0")
@example("#", "anything.at.all")
@example("#.#", ".")
def test_a_binding_key_takes_what_it_takes_in_the_broker(pattern: str, key: str):
    matcher = Matcher(KeyRules())
    matcher.set(1, (pattern,))

    assert (routing_pattern(pattern).fullmatch(f".{key}") is not None) == bool(matcher.find(key))
