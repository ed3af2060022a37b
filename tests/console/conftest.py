"""Fixtures for tests in a browser: a broker with its console, an account per test, signed-in pages.

    def test_a_queue_is_created(page: Page, account: Account): ...

    page          a page that is signed in with the key of ``account``, all roles; it shows the topics
    admin_page    a page that is signed in with the key of account ``admin``
    account       a new, empty account with an open synchronous client, ``account.client``; ``account.seed()`` fills it
    visits        further pages: ``visits.sign_in(account.make_key("read"), "queues")``, with options of a context
    broker        the broker of all tests; ``own_broker`` is one of the test alone, which may restart it

A test fails if the browser reports an error, a breach of the Content-Security-Policy or a request to another host;
``visits.complaints.allow(pattern)`` expects some. Tests wait with Playwright's ``expect`` and never sleep.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from support.console.chromium import find_chromium
from support.console.console_rig import Account, ConsoleBroker, Visits
from support.console.console_rig import visits as visiting

EXPECT_SECONDS = 60
"""Far more than a page needs on a busy machine; a condition that never comes fails then."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.console)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium. Without one the tests fail: a skipped test is no test."""
    chromium = find_chromium()
    assert chromium is not None, "there is no Chromium; make setup-all PARTS=console gets one"
    expect.set_options(timeout=EXPECT_SECONDS * 1_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.executable, env=dict(chromium.environment), args=list(chromium.arguments)
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBroker]:
    with ConsoleBroker(tmp_path_factory.mktemp("console")) as broker:
        yield broker


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[ConsoleBroker]:
    with ConsoleBroker(tmp_path) as broker:
        yield broker


@pytest.fixture
def account(broker: ConsoleBroker) -> Iterator[Account]:
    account = broker.make_account()
    yield account
    account.client.close()


@pytest.fixture
def visits(browser: Browser, broker: ConsoleBroker) -> Iterator[Visits]:
    with visiting(browser, broker) as opened:
        yield opened


@pytest.fixture
def page(visits: Visits, account: Account) -> Page:
    return visits.sign_in(account.key, "topics")


@pytest.fixture
def admin_page(visits: Visits, broker: ConsoleBroker) -> Page:
    return visits.sign_in(broker.admin, "topics")
