"""The page of half messages: undecided messages with their checks, and decisions by hand."""

from playwright.sync_api import Locator, Page, expect

from cmqd_client import TransactionStatus
from support.console.console_rig import Account, Visits


def half_messages(page: Page) -> Locator:
    """Show the page and return the table of undecided messages."""
    page.get_by_role("link", name="Half messages").click()
    table = page.get_by_role("table", name="Undecided half messages of bills")
    expect(table).to_be_visible()
    return table


def decide(page: Page, row: Locator, decision: str) -> None:
    row.get_by_role("button", name=decision).click()
    page.get_by_role("dialog").get_by_role("button", name=decision).click()


def test_undecided_messages_show_body_checks_and_next_check(page: Page, account: Account):
    account.seed()
    table = half_messages(page)

    queues = page.get_by_role("table", name="Transactional queue")
    expect(queues.get_by_role("row").nth(1)).to_contain_text("bills")
    expect(queues.get_by_role("row").nth(1)).to_contain_text("2")
    row = table.get_by_role("row").nth(1)
    for text in ("half one", "0 of 15", "not asked yet", "minutes"):
        expect(row).to_contain_text(text)
    row.get_by_role("button").first.click()
    expect(table.locator("tr.detail")).to_contain_text("half one")


def test_a_commit_delivers_and_a_roll_back_drops(page: Page, account: Account):
    account.seed()
    table = half_messages(page)

    table.get_by_role("row").nth(1).get_by_role("button", name="Commit").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("half one")
    expect(dialog).to_contain_text("The decision is final")
    dialog.get_by_role("button", name="Commit").click()
    expect(table.get_by_role("row")).to_have_count(2)
    decide(page, table.get_by_role("row").nth(1), "Roll back")

    expect(page.get_by_role("heading", name="Every half message is decided")).to_be_visible()
    bills = account.client.queue("bills")
    assert [message.body for message in bills.receive(16, wait=0)] == [b"half one"]
    assert bills.attributes().half == 0


def test_a_message_that_was_decided_meanwhile_is_said_in_words(page: Page, account: Account):
    account.seed()
    bills = account.client.queue("bills")
    table = half_messages(page)
    table.get_by_role("row").nth(1).get_by_role("button", name="Roll back").click()
    [first, _] = bills.half_messages()
    bills.end_transactions([first.id], TransactionStatus.COMMIT)

    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()

    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("committed")
    page.keyboard.press("Escape")
    expect(table.get_by_role("row")).to_have_count(2)


def test_a_cancelled_decision_changes_nothing(page: Page, account: Account):
    account.seed()
    table = half_messages(page)

    table.get_by_role("row").nth(1).get_by_role("button", name="Commit").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    assert account.client.queue("bills").attributes().half == 2


def test_a_key_that_reads_is_offered_no_decision(visits: Visits, account: Account):
    account.seed()
    page = visits.sign_in(account.make_key("read"), "half-messages")

    table = page.get_by_role("table", name="Undecided half messages of bills")
    expect(table).to_contain_text("half one")
    expect(table.get_by_role("button", name="Commit")).to_have_count(0)


def test_without_transactional_queues_the_page_teaches(page: Page):
    page.get_by_role("link", name="Half messages").click()

    expect(page.get_by_role("heading", name="No queue is transactional")).to_be_visible()
    expect(page.locator(".empty")).to_contain_text("cmq queue create payments --transactional")
