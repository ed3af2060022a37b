"""A broker of the core after random operations of all kinds: a log that readers must understand."""

import random
from contextlib import suppress

from cmqd.core.broker import Broker
from cmqd.core.domain_errors import DomainError, SubscriptionNotFound
from cmqd_segment.checkpoint import AnyPart
from cmqd_segment.records import AnyRecord
from support.core.builders import ACCOUNT, KEY, Rig, every

SOME_MS = 1500
URL = "http://127.0.0.1/hook"


def busy_rig(seed: int, steps: int) -> "tuple[Rig, list[list[AnyPart]]]":
    """A broker with a queue of every kind, after some steps; checkpoints taken in between."""
    choose = random.Random(seed)
    rig = Rig()
    rig.create("dead", rewind_ms=60_000, retention_ms=3_600_000)
    rig.create(
        "q", dead_letter_queue="dead", dead_letter_max_receives=2, rewind_ms=60_000, max_delayed=3, transactional=True
    )
    rig.create("plain", max_backlog=1_000_000)
    rig.create_topic()
    rig.subscribe("plain")
    rig.subscribe(URL, name="web")
    halves: list[int] = []
    checkpoints: list[list[AnyPart]] = []
    under_way = None

    def end_pushes() -> None:
        for push in list(rig.pushes):
            rig.end_push(push, choose.choice([None, "it is not there"]))

    def made_again(name: str) -> None:
        """Delete a queue, or the topic, and create a new one under the same name."""
        if name == "news":
            for subscription in ("plain", "web"):
                with suppress(SubscriptionNotFound):
                    rig.done(rig.broker.unsubscribe(ACCOUNT, "news", subscription, rig.now_ms))
            rig.done(rig.broker.delete_topic(ACCOUNT, "news"))
            rig.create_topic()
        else:
            rig.delete_queue(name)
            rig.create(name, rewind_ms=choose.choice([0, 60_000]))
            if name == "q":
                rig.set("q", dead_letter_queue="dead", dead_letter_max_receives=2)
        rig.subscribe("plain")
        rig.subscribe(URL, name="web")

    def step() -> None:
        name = choose.choice(["q", "q", "plain", "dead"])
        match choose.randrange(18):
            case 0 | 1:
                rig.send(*[b"x"] * choose.randrange(1, 6), name=choose.choice(["q", "plain"]))
            case 2:
                rig.send(b"d", b"e", name="plain", delay_ms=choose.choice([0, 500, 3000]))
            case 3:
                halves.extend(rig.send_half(b"h", b"i", name="q"))
            case 4 if halves:
                rig.end(choose.choice([1, 2, 3]), halves.pop(choose.randrange(len(halves))), name="q")
            case 5 | 6 | 7:
                got = rig.receive(name, most=choose.randrange(1, 5), visibility_timeout_ms=SOME_MS)
                handles = [message.receipt_handle for message in got]
                if handles and choose.random() < 0.6:
                    rig.delete(*handles[: choose.randrange(1, len(handles) + 1)], name=name)
                elif handles and choose.random() < 0.5:
                    rig.release(handles[0], name=name, counted=choose.random() < 0.5)
            case 8:
                rig.publish(b"p", b"q", labels=["a"])
            case 9:
                rig.rewind(rig.now_ms - choose.randrange(30_000), name=choose.choice(["q", "dead"]))
            case 10 if choose.random() < 0.2:
                rig.clear(choose.choice(["plain", "dead"]))
            case 11 if choose.random() < 0.3:
                rig.set("q", rewind_ms=choose.choice([0, 5_000, 60_000]))
            case 12 if choose.random() < 0.3:
                rig.redrive("dead")
            case 13 if choose.random() < 0.05:
                rig.settle(3_600_000)
            case 14:
                # A full queue takes no copies: the copies wait, and come late.
                rig.force("plain", max_backlog=choose.choice([1, 1_000_000]))
            case 15:
                end_pushes()
            case 16 if choose.random() < 0.3:
                rig.done(rig.broker.drop_deliveries(ACCOUNT, "news", choose.choice(["web", "plain"]), rig.now_ms))
            case 17 if choose.random() < 0.3:
                made_again(choose.choice(["plain", "plain", "news", "q"]))
            case _:
                rig.settle(choose.choice([10, 400, 1100, 4000]))

    for _ in range(steps):
        if under_way is None and choose.random() < 0.05:
            under_way = rig.broker.checkpoint(lambda: rig.log.last_lsn, rig.now_ms)
            checkpoints.append([])
        if under_way is not None:
            part = next(under_way, None)
            if part is None:
                under_way = None
            else:
                checkpoints[-1].append(part)
        try:
            step()
        except DomainError:
            pass  # not possible at this moment
        rig.settle()
    if under_way is not None:
        checkpoints[-1].extend(under_way)
    return rig, checkpoints


def replayed(rows: "list[list[AnyRecord]]") -> Broker:
    """The broker after these rows."""
    broker = Broker(KEY, calendar=every)
    for lsn, records in enumerate(rows, 1):
        for record in records:
            broker.replay(record, lsn)
    return broker
