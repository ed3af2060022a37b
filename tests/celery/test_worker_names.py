# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""The name of a Celery worker is the name of its connections."""

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from typing import Any

import pytest
from celery.signals import celeryd_init

import cmqd_kombu.worker_names as names
from cmqd_client.address import Address, parse_address
from cmqd_kombu import session
from cmqd_kombu.options import Options


class Refused(Exception):
    """Ends the opening of a session at its first step."""


@pytest.fixture(autouse=True)
def without_worker() -> Iterator[None]:
    yield
    celeryd_init.send(sender=None)


def name_of_connection(monkeypatch: pytest.MonkeyPatch, address: Address) -> str | None:
    given: list[str | None] = []

    def connect(_: Address, **options: Any) -> None:
        given.append(options["name"])
        raise Refused

    monkeypatch.setattr(session, "connect", connect)
    with pytest.raises(Refused):
        asyncio.run(session._open(address, None, Options(), 1.0))  # pyright: ignore[reportPrivateUsage]
    return given[0]


def test_a_worker_has_the_name_of_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    address = parse_address("cmq://a:b@h")
    assert name_of_connection(monkeypatch, address) is None

    # As ``celery worker -n images@%h`` does, before it connects.
    celeryd_init.send(sender="images@web-3", conf={}, options={})

    assert names.worker_name() == "images@web-3"
    assert name_of_connection(monkeypatch, address) == "images@web-3"
    # The name of a URL comes first.
    assert name_of_connection(monkeypatch, parse_address("cmq://a:b@h/?name=mine")) is None


def test_a_name_of_a_worker_that_no_client_may_have_is_fitted() -> None:
    celeryd_init.send(sender="a\u200b" + "w" * 200)

    assert names.worker_name() == "a?" + "w" * 126


@pytest.mark.parametrize(
    "failure", [ImportError("cannot import name"), SyntaxError("async"), ModuleNotFoundError("vine")]
)
def test_a_celery_that_cannot_be_imported_leaves_the_name_out(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    class Broken(MetaPathFinder):
        def find_spec(self, fullname: str, *_: Any) -> None:
            if fullname == "celery.signals":
                raise failure

    monkeypatch.delitem(sys.modules, "celery.signals")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    spec = importlib.util.find_spec("cmqd_kombu.worker_names")
    assert spec is not None
    assert spec.loader is not None
    anew = importlib.util.module_from_spec(spec)

    spec.loader.exec_module(anew)

    assert anew.worker_name() is None
