"""The page of storage: the time line of segments, their reasons to stay, and history."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from support.console.console_rig import Account, ConsoleBroker, Visits
from support.console.console_rig import visits as visiting


@pytest.fixture
def own_visits(browser: Browser, own_broker: ConsoleBroker) -> Iterator[Visits]:
    with visiting(browser, own_broker) as opened:
        yield opened


def row(page: Page, segment: int) -> str:
    """Return the text of a segment's row."""
    return page.locator("table[aria-label=Segments] tr", has=page.locator(f"#segment-{segment}")).inner_text()


def test_each_segment_shows_what_keeps_it(own_broker: ConsoleBroker, own_visits: Visits):
    client = own_broker.client
    orders = client.create_queue("orders", rewind=3_600)
    orders.send_batch([b"1", b"2", b"3"])
    for message in orders.receive(1, wait=0):
        message.delete()
    client.seal_segments()
    client.create_queue("mail").send(b"4")
    page = own_visits.sign_in(own_broker.admin, "storage")

    expect(page.locator("#segment-2")).to_be_visible()
    first, second = row(page, 1), row(page, 2)
    assert "sealed" in first
    assert "2 messages" in first
    assert "1 rewindable" in first
    assert "orders 3" in " ".join(first.split())
    assert "active" in second
    assert "New rows" in second
    assert "mail 1" in " ".join(second.split())
    expect(page.locator("svg .segment-bar")).to_have_count(2)
    holders = page.get_by_role("table", name="Queues and topics that hold most")
    expect(holders.get_by_role("link", name="orders")).to_be_visible()

    page.get_by_role("group", name="Kept for").get_by_role("button", name="Rewind windows").click()
    expect(page.locator("#segment-2")).to_have_count(0)
    expect(page.locator("#segment-1")).to_be_visible()
    # A bar of the time line leads to its row, whatever reason was chosen.
    page.get_by_role("button", name="By order").click()
    page.locator("svg .segment-bar").nth(1).click()
    expect(page.locator("#segment-2")).to_be_in_viewport()

    holders.get_by_role("link", name="orders").click()
    expect(page).to_have_url(re.compile("/console/queues/orders$"))


def test_a_log_of_many_segments_is_shown_in_parts(own_broker: ConsoleBroker, own_visits: Visits):
    queue = own_broker.client.create_queue("orders")
    for _ in range(5):
        queue.send(b"1")
        own_broker.client.seal_segments()
    page = own_visits.sign_in(own_broker.admin, "topics")
    # The broker's own pages, of two segments in place of 500.
    page.route(
        "**/api/v1/segments?*", lambda route: route.continue_(url=route.request.url.replace("limit=500", "limit=2"))
    )
    page.get_by_role("link", name="Storage").click()

    expect(page.get_by_text("show 2 of 5 segments")).to_be_visible()
    expect(page.locator("#segment-2")).to_be_visible()
    page.get_by_role("button", name="Later segments").click()
    expect(page.locator("#segment-4")).to_be_visible()
    expect(page.locator("#segment-2")).to_have_count(0)
    page.get_by_role("button", name="Later segments").click()
    expect(page.locator("#segment-5")).to_be_visible()
    expect(page.get_by_role("button", name="Later segments")).to_be_disabled()
    page.get_by_role("button", name="From the first segment").click()
    expect(page.locator("#segment-1")).to_be_visible()


def test_history_is_explained(browser: Browser, tmp_path: Path):
    with ConsoleBroker(tmp_path, "--keep-history-ms", "7d") as broker, visiting(browser, broker) as visits:
        queue = broker.client.create_queue("orders")
        queue.send(b"1")
        for message in queue.receive(1, wait=0):
            message.delete()
        broker.client.seal_segments()
        queue.send(b"2")
        page = visits.sign_in(broker.admin, "storage")

        expect(page.locator(".history-text")).to_contain_text("stays for 7 d after its last row")
        assert "History" in row(page, 1)


def test_without_history_the_page_says_how_to_keep_it(own_broker: ConsoleBroker, own_visits: Visits):
    own_broker.client.create_queue("orders").send(b"1")
    page = own_visits.sign_in(own_broker.admin, "storage")

    expect(page.locator(".history-text")).to_contain_text("No history is kept")
    expect(page.locator(".history-text")).to_contain_text("cmqd serve --keep-history-ms 7d")


def test_new_segments_appear_on_the_open_page(own_broker: ConsoleBroker, own_visits: Visits):
    queue = own_broker.client.create_queue("orders")
    queue.send(b"1")
    page = own_visits.sign_in(own_broker.admin, "storage")
    expect(page.locator("#segment-1")).to_be_visible()
    own_broker.client.seal_segments()
    queue.send(b"2")

    page.get_by_role("button", name="Refresh").click()

    expect(page.locator("#segment-2")).to_be_visible()


def test_other_accounts_have_no_page_of_storage(visits: Visits, account: Account):
    page = visits.sign_in(account.key, "storage")

    expect(page.get_by_role("alert").first).to_contain_text("The roles and names of your key do not allow this.")
    expect(page.get_by_role("link", name="Storage")).to_have_count(0)
