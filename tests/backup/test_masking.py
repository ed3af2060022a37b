"""The parts of messages that a clone hides."""

import pytest

from cmqd_backup.cloning.masking import Masking, Shown
from cmqd_backup.refusals import Refused
from cmqd_types.messages import CopyOf, Origin

SECRET = b"4111-1111"
LIMIT = 65_536
"""Longest body of the queue."""


@pytest.mark.parametrize(
    ("path", "body", "masked"),
    [
        ("$.card", b'{"card": "4111-1111", "sum": 3}', b'{"card":"***","sum":3}'),
        ("$.card.number", b'{"card": {"number": 4111}}', b'{"card":{"number":"***"}}'),
        ("$[1]", b'[1, "4111-1111"]', b'[1,"***"]'),
        (
            "$.cards[*].number",
            b'{"cards": [{"number": 1}, {"number": 2}]}',
            b'{"cards":[{"number":"***"},{"number":"***"}]}',
        ),
        ('$["the card"]', b'{"the card": {"a": 1}}', b'{"the card":"***"}'),
        ("$", b'{"card": 1}', b'"***"'),
    ],
)
def test_the_value_at_a_path_is_hidden_and_the_rest_stays(path: str, body: bytes, masked: bytes):
    assert Masking([path]).body(body, LIMIT) == masked


@pytest.mark.parametrize(
    "body",
    [
        b'{"other": "4111-1111"}',
        b"card=4111-1111",
        b'{"card": "4111-1111"',
        b"\xff\xfe4111-1111",
        b'["4111-1111"]',
        b'{"CARD": "4111-1111"}',
        b"[" * 5000 + b'"4111-1111"' + b"]" * 5000,
    ],
)
def test_a_body_in_which_the_path_finds_no_value_is_replaced_whole(body: bytes):
    assert Masking(["$.card"]).body(body, LIMIT) == bytes(len(body))


def test_every_branch_of_a_path_must_have_a_value():
    body = b'{"cards": [{"number": 1}, {"nummer": "4111-1111"}]}'

    assert Masking(["$.cards[*].number"]).body(body, LIMIT) == bytes(len(body))


def test_bodies_that_are_replaced_whole_are_counted():
    masking = Masking(["$.card"])
    for body in (b'{"card": 1}', b"card=1", b'{"crad": 1}'):
        masking.body(body, LIMIT)

    assert masking.replaced == 2


def test_every_path_must_find_a_value():
    assert SECRET not in Masking(["$.card", "$.iban"]).body(b'{"card": 1, "note": "4111-1111"}', LIMIT)


def test_a_key_that_comes_twice_does_not_pass():
    assert SECRET not in Masking(["$.card"]).body(b'{"card": "4111-1111", "card": "x"}', LIMIT)


def test_a_mask_leaves_out_what_could_repeat_its_value():
    message = Shown(
        b"body",
        {"X-Card": "4111-1111", "other": "4111-1111"},
        Origin("orders", 1, 2, 3, "rejected", "card 4111-1111"),
        CopyOf("shop", "all", 1, 2, ["4111-1111"]),
        "4111-1111",
    )

    shown = Masking(["x-card"]).message(message, LIMIT)

    assert shown == Shown(
        b"body", {"X-Card": "***"}, Origin("orders", 1, 2, 3, "rejected"), CopyOf("shop", "all", 1, 2), None
    )
    assert Masking().message(message, LIMIT) == message


def test_without_bodies_the_sizes_stay():
    shown = Masking(no_bodies=True).message(Shown(b"4111-1111", {"a": "b"}, None, None, "id"), LIMIT)

    assert shown == Shown(bytes(9), {"a": "b"}, None, None, "id")


@pytest.mark.parametrize("mask", ["$.", "$card", "$.a[", "$.a[-1]", "$..a", "a header", ""])
def test_a_mask_that_is_no_path_and_no_header_is_refused(mask: str):
    with pytest.raises(Refused, match="--mask"):
        Masking([mask])


def test_a_body_that_is_too_long_with_its_hidden_values_is_replaced_whole():
    # Three bytes of each value become six: a queue could not move the message to another one.
    body = b"[" + b",".join([b"1"] * 2000) + b"]"

    assert Masking(["$[*]"]).body(body, 12_001) == b"[" + b",".join([b'"***"'] * 2000) + b"]"
    assert Masking(["$[*]"]).body(body, 12_000) == bytes(len(body))
    # A body that was too long before, because the limit was lowered since, is as long as before at most.
    long = b'{"card": "%s"}' % (b"4111-1111" * 20)
    assert Masking(["$.card"]).body(long, 1) == b'{"card":"***"}'
