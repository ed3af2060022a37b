"""The pages of dead letters, with sources, origins and redrives, and of the life of a message."""

import re

from playwright.sync_api import Page, expect

from support.console.console_rig import Account, Visits


def dead_letters(page: Page, queue: str = "orders-dead") -> Page:
    """Show the page with the messages of a queue."""
    page.get_by_role("link", name="Dead letters").click()
    expect(page.get_by_role("table", name=f"Dead letters of {queue}")).to_be_visible()
    return page


def start_redrive(page: Page, *, target: str | None = None, rate: int | None = None) -> None:
    page.get_by_role("button", name="Start a redrive").click()
    dialog = page.get_by_role("dialog")
    if target is not None:
        dialog.get_by_label("Where to").select_option("target")
        dialog.get_by_label("Queue").fill(target)
    if rate is not None:
        dialog.get_by_label("Most messages per second").fill(str(rate))
    dialog.get_by_role("button", name="Start a redrive").click()


def test_dead_letters_show_origin_and_reason(page: Page, account: Account):
    account.seed()
    dead_letters(page)

    queues = page.get_by_role("table", name="Dead letters", exact=True)
    expect(queues.get_by_role("row").nth(1)).to_contain_text("orders-dead")
    expect(queues.get_by_role("row").nth(1)).to_contain_text("4")
    expect(page.locator("#chosen-queue")).to_contain_text("Sources: orders")
    messages = page.get_by_role("table", name="Dead letters of orders-dead")
    first = messages.get_by_role("row").nth(1)
    expect(first).to_contain_text("rejected: the total is negative")
    expect(first.get_by_role("link", name="orders")).to_be_visible()

    first.get_by_role("button").click()

    expect(messages).to_contain_text("rejected by its consumer")
    expect(messages.get_by_text('"order"', exact=True)).to_be_visible()


def test_a_redrive_moves_each_message_to_its_origin(page: Page, account: Account):
    account.seed()
    account.client.queue("orders-dead").send(b"sent here by hand")
    before = account.client.queue("orders").attributes().active
    dead_letters(page)

    start_redrive(page)

    redrive = page.locator(".redrive")
    expect(redrive).to_contain_text("The last redrive moved 4 messages")
    expect(redrive).to_contain_text("1: sent here directly, without an origin")
    expect(page.get_by_role("table", name="Dead letters of orders-dead")).to_contain_text("sent here directly")
    assert account.client.queue("orders").attributes().active == before + 4


def test_a_redrive_with_a_rate_shows_its_progress_and_is_cancelled(page: Page, account: Account):
    account.seed()
    dead_letters(page)

    # Slow enough to stay under way for as long as a busy machine needs to find the button.
    dead = account.client.queue("orders-dead")
    dead.send_batch([b"more"] * 2_000, split=True)
    start_redrive(page, target="empty", rate=1)
    redrive = page.locator(".redrive")
    expect(redrive).to_contain_text("A redrive is running")
    expect(redrive).to_contain_text("to empty")
    expect(redrive).to_contain_text("at most 1/s")
    expect(redrive.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("button", name="Cancel the redrive").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the redrive").click()

    expect(redrive).to_contain_text("The last redrive was cancelled")
    status = dead.redrive_status()
    assert (status.reason, status.target, status.max_per_second) == ("cancelled", "empty", 1)


def test_a_refused_target_is_said_beside_the_form(page: Page, account: Account):
    account.seed()
    dead_letters(page)

    start_redrive(page, target="missing")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("the redrive cannot move messages to 'missing': the queue does not exist")
    expect(dialog.get_by_label("Queue")).to_be_focused()
    dialog.get_by_label("Most messages per second").fill("0")
    dialog.get_by_role("button", name="Start a redrive").click()

    expect(dialog.get_by_text("Must be 1 to 1,000,000.")).to_be_visible()
    expect(dialog.get_by_label("Most messages per second")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Start a redrive")).to_be_focused()


def test_another_dead_letter_queue_is_chosen_and_stays_after_a_load(page: Page, account: Account):
    account.seed()
    account.client.create_queue("mail-dead")
    account.client.create_queue("mail", dead_letter_queue="mail-dead", dead_letter_max_receives=3)
    dead_letters(page)

    page.get_by_role("button", name="Show mail-dead").click()

    expect(page.locator("#chosen-queue")).to_contain_text("No dead letters")
    expect(page.locator("#chosen-queue h2").first).to_be_focused()
    expect(page).to_have_url(re.compile(r"\?queue=mail-dead$"))
    page.reload()
    expect(page.locator("#chosen-queue h2").first).to_have_text("mail-dead")


def test_a_key_that_reads_is_offered_no_redrive(visits: Visits, account: Account):
    account.seed()
    page = visits.sign_in(account.make_key("read"), "dead-letters")

    expect(page.get_by_role("table", name="Dead letters of orders-dead")).to_be_visible()
    expect(page.get_by_role("button", name="Start a redrive")).to_have_count(0)


def test_without_dead_letter_queues_the_page_teaches(page: Page):
    page.get_by_role("link", name="Dead letters").click()

    expect(page.get_by_role("heading", name="No queue serves as a dead-letter queue")).to_be_visible()
    expect(page.locator(".empty")).to_contain_text("--dead-letter-max-receives 5")


# ---------------------------------------------------------------- the life of a message


def test_a_message_of_a_queue_leads_to_its_life(page: Page, account: Account, visits: Visits) -> None:
    orders = account.client.ensure_queue("orders")
    sent = orders.send(b"one espresso")
    (message,) = orders.receive(wait=0)
    message.release()
    page.goto(f"{visits.broker.console}queues/orders")
    page.get_by_role("table", name="Messages").get_by_role("row").nth(1).get_by_role("button").first.click()

    page.get_by_role("link", name="History", exact=True).click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Message history")
    events = page.get_by_role("table", name="Events")
    for number, texts in enumerate([("sent", "12 B"), ("received", "until"), ("given back", "orders")], 1):
        for text in texts:
            expect(events.get_by_role("row").nth(number)).to_contain_text(text)
    expect(events.get_by_role("row").nth(1)).to_contain_text("by ")
    expect(events.get_by_role("row").nth(1)).to_contain_text("(AKID")
    expect(events.get_by_role("row")).to_have_count(4)
    place = page.get_by_role("table", name="Where the message is").get_by_role("row").nth(1)
    for text in ("orders", "Active", sent.id):
        expect(place).to_contain_text(text)
    assert page.url.endswith(f"/message-history?message={sent.id}")


def test_messages_are_found_by_a_header(page: Page, account: Account, visits: Visits) -> None:
    orders = account.client.ensure_queue("orders")
    headers = [{"order": "4711"}, {"customer": "7"}, {"customer": "7"}]
    first, *others = [orders.send(b"one espresso", headers=each).id for each in headers]
    page.goto(f"{visits.broker.console}message-history")
    field, button = page.get_by_label("Message id, or a header"), page.get_by_role("button", name="Show history")

    field.fill("order=4711")
    button.click()
    expect(page.get_by_role("table", name="Where the message is")).to_contain_text(first)
    field.fill("customer=7")
    button.click()
    found = page.get_by_role("table", name="Find a message")
    expect(found.get_by_role("row")).to_have_count(3)
    found.get_by_role("button", name=others[1]).click()
    expect(page.get_by_role("table", name="Where the message is")).to_contain_text(others[1])
    field.fill("customer=8")
    button.click()
    expect(page.get_by_text("No message has this header.")).to_be_visible()
    expect(page.get_by_role("table")).to_have_count(0)


def test_a_wrong_and_an_unknown_id_are_said_in_words(page: Page, account: Account, visits: Visits) -> None:
    page.goto(f"{visits.broker.console}message-history")
    field = page.get_by_label("Message id")

    field.fill("12")
    page.get_by_role("button", name="Show history").click()
    expect(page.locator("#history-fault")).to_contain_text("16 hexadecimal digits")
    field.fill("Msg-00000000ffffffff")
    page.get_by_role("button", name="Show history").click()

    expect(page.get_by_role("alert")).to_contain_text(
        "no readable row of the log tells of message Msg-00000000ffffffff"
    )
    expect(page.get_by_role("table")).to_have_count(0)
