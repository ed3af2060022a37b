"""Open pages outlast a restart of the broker: pages say that the broker is away, and go on without a load."""

import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from cmqd_client import sync
from support.console.console_rig import Account, ConsoleBroker, Visits
from support.console.console_rig import visits as visiting
from support.processes.running_gateway import RunningGateway
from support.processes.running_server import RunningServer
from support.processes.silent_port import reserve_port

PAGES = {
    "": "Overview",
    "queues": "Queues",
    "queues/orders": "orders",
    "topics": "Topics",
    "topics/news": "news",
    "dead-letters": "Dead letters",
    "half-messages": "Half messages",
    "message-history": "Message history",
    "schedules": "Schedules",
}
"""Headings of pages by path."""


@pytest.fixture
def visits(browser: Browser, own_broker: ConsoleBroker) -> Iterator[Visits]:
    """Pages of a broker of the test alone; requests may fail while the broker is away."""
    with visiting(browser, own_broker) as opened:
        opened.complaints.allow(r"^status 50[234]:")
        yield opened


@pytest.fixture
def account(own_broker: ConsoleBroker) -> Iterator[Account]:
    account = own_broker.make_account().seed()
    yield account
    account.client.close()


def start_again(broker: ConsoleBroker) -> None:
    """Start the broker with its gateway at the address of before."""
    broker.server.start()
    broker.wait_for_gateway()


def expect_away(page: Page) -> None:
    expect(page.locator(".bar").get_by_role("status")).to_have_text("Broker away")
    expect(page.get_by_text("The broker does not answer.")).to_be_visible()


def expect_back(page: Page) -> None:
    expect(page.locator(".bar").get_by_role("status")).to_have_text("Connected")
    expect(page.get_by_text("The broker does not answer.")).to_have_count(0)


def test_every_page_says_so_and_goes_on(visits: Visits, own_broker: ConsoleBroker, account: Account):
    pages = {heading: visits.sign_in(account.key, path) for path, heading in PAGES.items()}
    for heading, page in pages.items():
        expect_back(page)
        expect(page.get_by_role("heading", level=1)).to_contain_text(heading)

    own_broker.server.kill()
    for heading, page in pages.items():
        expect_away(page)
        expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
    expect(pages["Overview"].get_by_text("Live", exact=True)).to_have_count(0)
    start_again(own_broker)

    for heading, page in pages.items():
        expect_back(page)
        expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
        expect(page.locator("main [role=alert]")).to_have_count(0)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_queue_goes_on_where_it_was(visits: Visits, own_broker: ConsoleBroker, account: Account, end: signal.Signals):
    queue = account.client.create_queue("restarted", visibility_timeout=3_600)
    queue.send_batch([b"held", b"first"])
    page = visits.sign_in(account.key, "queues/restarted")
    page.get_by_role("button", name="Receive by hand").click()
    page.get_by_role("dialog").get_by_role("button", name="Receive", exact=True).click()
    held = page.get_by_role("table", name="Received by hand").locator("tbody tr:not(.detail)")
    expect(held).to_have_count(1)
    active = page.locator(".life-picture.wide .life-box.active .life-count")
    expect(active).to_have_text("1")

    own_broker.server.stop(end)
    expect_away(page)
    # The figures of before stay on the page.
    expect(active).to_have_text("1")
    expect(held).to_have_count(1)
    start_again(own_broker)
    expect_back(page)
    with closing(own_broker.client_of(account.key)) as client:
        client.queue("restarted").send(b"second")

        expect(active).to_have_text("2")
        excerpts = page.get_by_role("table", name="Messages").locator(".excerpt")
        expect(excerpts).to_have_text(["held", "first", "second"])
        # The receipt handle is valid beyond the restart.
        held.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("table", name="Received by hand")).to_have_count(0)
        assert [message.body for message in client.queue("restarted").peek()] == [b"first", b"second"]


def test_typed_text_outlasts_the_restart_and_is_sent_once(visits: Visits, own_broker: ConsoleBroker, account: Account):
    account.client.create_queue("fresh")
    page = visits.sign_in(account.key, "queues/fresh")
    page.get_by_role("button", name="Send test message").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Body").fill("typed before")

    own_broker.server.kill()
    dialog.get_by_role("button", name="Send", exact=True).click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    expect(dialog.get_by_role("textbox", name="Body")).to_have_value("typed before")
    start_again(own_broker)
    expect_back(page)
    dialog.get_by_role("button", name="Send", exact=True).click()

    expect(page.get_by_text(re.compile("Sent: Msg-"))).to_be_visible()
    with closing(own_broker.client_of(account.key)) as client:
        assert [message.body for message in client.queue("fresh").peek()] == [b"typed before"]


def test_a_session_that_ended_meanwhile_leads_to_the_sign_in(
    visits: Visits, own_broker: ConsoleBroker, account: Account
):
    # The stream of events may ask before the page does.
    visits.complaints.allow(r"^status 401: GET /console/events")
    key = account.make_key("read")
    page = visits.sign_in(key, "topics")
    expect_back(page)
    own_broker.server.kill()
    expect_away(page)
    page.context.clear_cookies()

    start_again(own_broker)

    expect(page.locator("input[name=secret_key]")).to_be_visible()


def test_a_page_hears_of_a_broker_that_ends_while_its_gateway_stays(browser: Browser, tmp_path: Path):
    with (
        reserve_port() as reserved,
        RunningServer(tmp_path, "--listen", f"127.0.0.1:{reserved.getsockname()[1]}") as server,
        RunningGateway(tmp_path, server) as gateway,
    ):
        with sync.connect(server.url) as client:
            client.create_queue("orders").send(b"x")
        context = browser.new_context(base_url=f"{gateway.url}/console/", locale="en-US")
        try:
            pair = {"secret_id": gateway.secret_id, "secret_key": gateway.secret_key}
            assert context.request.post("session", data=pair).ok
            page = context.new_page()
            page.goto("topics")
            expect_back(page)

            server.kill()
            expect_away(page)
            server.start()

            expect_back(page)
        finally:
            context.close()
