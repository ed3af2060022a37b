"""The list of queues, the dialog that creates and edits them, and the dialog of a rewind."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from support.console.chromium import AXE_FILE
from support.console.console_rig import Account, Visits
from support.console.declarations import declare
from support.eventually import eventually_elsewhere


def names_shown(page: Page) -> list[str]:
    return page.locator("tbody .queue-name").all_inner_texts()


def expect_names(page: Page, *names: str) -> None:
    expect(page.locator("tbody .queue-name")).to_have_text(list(names))


def some_queues(account: Account) -> None:
    """Queues with 3, 1 and no messages, the last of them the dead-letter queue of the first."""
    account.client.create_queue("orders-dead")
    account.client.create_queue("orders", dead_letter_queue="orders-dead", dead_letter_max_receives=3).send_batch(
        [b"1", b"2", b"3"]
    )
    account.client.create_queue("bills", transactional=True).send(b"1")


def dialog_of(page: Page) -> Locator:
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    return dialog


# ---------------------------------------------------------------- the list


def test_queues_are_sorted_on_the_server_and_the_address_keeps_the_order(visits: Visits, account: Account):
    some_queues(account)
    page = visits.sign_in(account.key, "queues")
    expect_names(page, "bills", "orders", "orders-dead")
    expect(page.get_by_role("columnheader", name="Queue")).to_have_attribute("aria-sort", "ascending")

    page.get_by_role("button", name="Active").click()

    expect_names(page, "orders", "bills", "orders-dead")
    expect(page.get_by_role("columnheader", name="Active")).to_have_attribute("aria-sort", "descending")
    expect(page).to_have_url(re.compile(r"sort=active&descending=true$"))
    page.reload()
    expect_names(page, "orders", "bills", "orders-dead")
    page.get_by_role("button", name="Active").click()
    expect_names(page, "orders-dead", "bills", "orders")
    assert "descending" not in page.url


def test_a_search_and_a_kind_limit_the_list(visits: Visits, account: Account):
    some_queues(account)
    page = visits.sign_in(account.key, "queues")
    expect(page.get_by_text("3 queues")).to_be_visible()

    page.get_by_label("Search by name").fill("orders")

    expect_names(page, "orders", "orders-dead")
    expect(page).to_have_url(re.compile(r"search=orders$"))
    page.get_by_label("Kind of queues").select_option("dead_letter_queues")
    expect_names(page, "orders-dead")
    expect(page.get_by_text("1 queue", exact=True)).to_be_visible()
    page.get_by_label("Search by name").fill("absent")
    expect(page.get_by_role("heading", name="No queue matches")).to_be_visible()
    page.get_by_role("button", name="Show all queues").click()
    expect_names(page, "bills", "orders", "orders-dead")
    assert "?" not in page.url
    expect(page.get_by_label("Search by name")).to_have_value("")


def test_a_long_list_has_pages_with_addresses(visits: Visits, account: Account):
    for number in range(120):
        account.client.create_queue(f"q{number:03}")
    page = visits.sign_in(account.key, "queues")
    expect(page.locator("tbody .queue-name")).to_have_count(50)
    expect(page.get_by_role("button", name="Previous")).to_be_disabled()

    page.get_by_role("button", name="Next").click()

    expect(page.locator("tbody .queue-name").first).to_have_text("q050")
    expect(page).to_have_url(re.compile("offset=50$"))
    page.reload()
    expect(page.locator("tbody .queue-name").first).to_have_text("q050")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("tbody .queue-name")).to_have_count(20)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    for number in range(40, 120):
        account.client.delete_queue(f"q{number:03}")
    # The page behind the end of the list is replaced by the last page that is left.
    expect(page.locator("tbody .queue-name")).to_have_count(40)


def test_counts_and_rates_follow_the_queue(visits: Visits, account: Account):
    queue = account.client.create_queue("orders")
    page = visits.sign_in(account.key, "queues")
    row = page.locator("tbody tr")
    expect(row.locator("td[data-title=Active]")).to_have_text("0")
    expect(row.locator("td[data-title=In]")).to_have_text(re.compile("/s$"))

    queue.send_batch([b"x"] * 100)

    expect(row.locator("td[data-title=Active]")).to_have_text("100")
    expect(row.locator("td[data-title=In]")).to_have_text(re.compile(r"^[1-9].*/s$"))
    expect(row.locator("td[data-title=Oldest] time")).to_be_visible()


def test_the_first_visit_teaches(visits: Visits, account: Account):
    page = visits.sign_in(account.key, "queues")

    expect(page.get_by_role("heading", name="No queue yet")).to_be_visible()
    expect(page.get_by_text("cmq queue create orders")).to_be_visible()
    page.get_by_role("button", name="Copy Command line").click()
    assert page.evaluate("navigator.clipboard.readText()") == 'cmq queue create orders\ncmq send orders "hello"'


def test_a_key_without_manage_is_offered_no_change(visits: Visits, account: Account):
    some_queues(account)
    page = visits.sign_in(account.make_key("read"), "queues")

    expect_names(page, "bills", "orders", "orders-dead")
    expect(page.get_by_role("button", name="Create queue")).to_have_count(0)
    expect(page.get_by_role("button", name="Edit orders")).to_have_count(0)


def test_a_restricted_key_sees_its_queues(visits: Visits, account: Account):
    some_queues(account)
    page = visits.sign_in(account.make_key("read", names=("orders",)), "queues")

    expect_names(page, "orders")


def test_the_list_is_chinese_in_chinese(visits: Visits, account: Account):
    some_queues(account)
    page = visits.sign_in(account.key, "queues", locale="zh-CN")

    expect(page.get_by_role("heading", name="队列", level=1)).to_be_visible()
    expect(page.get_by_text("3 个队列")).to_be_visible()


# ---------------------------------------------------------------- create and edit


def test_a_queue_is_created_with_attributes(visits: Visits, account: Account):
    account.client.create_queue("orders-dead")
    page = visits.sign_in(account.key, "queues")
    page.get_by_role("button", name="Create queue").click()
    dialog = dialog_of(page)

    expect(dialog.get_by_label("Name", exact=True)).to_be_focused()
    page.keyboard.type("orders")
    dialog.get_by_label("Visibility timeout").fill("2min")
    dialog.get_by_label("Give up on a message").select_option("receives")
    dialog.get_by_label("Dead-letter queue", exact=True).fill("orders-dead")
    dialog.get_by_label("Receives before a dead letter").fill("7")
    dialog.get_by_label("Retention").fill("3d")
    dialog.get_by_label("Keep deleted messages").check()
    expect(dialog.get_by_label("Rewind window")).to_have_value("3d")
    dialog.get_by_label("Rewind window").fill("2d")
    dialog.get_by_label("Retention").fill("4d")
    dialog.get_by_label("Keep deleted messages").uncheck()
    dialog.get_by_label("Keep deleted messages").check()
    expect(dialog.get_by_label("Rewind window")).to_have_value("2d")
    dialog.get_by_text("The same on the command line").click()
    expect(dialog.locator("details code")).to_have_text(
        "cmq queue create orders --visibility-timeout 2m --rewind 2d --dead-letter-queue orders-dead"
        " --dead-letter-max-receives 7"
    )
    dialog.get_by_role("button", name="Create queue").click()

    expect(page).to_have_url(re.compile("/queues/orders$"))
    expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    info = account.client.queue("orders").attributes()
    assert (info.visibility_timeout, info.rewind, info.dead_letter_queue) == (120, 172_800, "orders-dead")
    assert (info.dead_letter_max_receives, info.dead_letter_after, info.retention) == (7, 0, 345_600)


def test_a_link_of_another_page_opens_the_dialog_once(visits: Visits, account: Account):
    page = visits.sign_in(account.key, "queues?create=1")
    expect(dialog_of(page).get_by_label("Name", exact=True)).to_be_focused()

    page.reload()

    expect(page.get_by_role("heading", name="No queue yet")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_transactional_queue_and_a_queue_that_is_deleted_when_unused(visits: Visits, account: Account):
    page = visits.sign_in(account.key, "queues")
    page.get_by_role("button", name="Create queue").click()
    dialog = dialog_of(page)
    dialog.get_by_label("Name", exact=True).fill("bills")
    dialog.get_by_label("Transactional").check()
    dialog.get_by_label("First check").fill("1min")
    dialog.get_by_label("Delete the queue when it is unused").check()
    dialog.get_by_role("button", name="Create queue").click()
    expect(dialog.get_by_text("cannot be deleted when unused")).to_be_visible()

    dialog.get_by_label("Delete the queue when it is unused").uncheck()
    dialog.get_by_role("button", name="Create queue").click()

    expect(page).to_have_url(re.compile("/queues/bills$"))
    info = account.client.queue("bills").attributes()
    assert (info.transactional, info.first_check, info.auto_delete_after) == (True, 60, 0)


@pytest.mark.parametrize(
    ("label", "typed", "fault"),
    [
        ("Name", "bad name", "Must be 1 to 64 ASCII letters, digits, - and _."),
        ("Visibility timeout", "13h", "Must be 1 s to 12 h."),
        ("Retention", "soon", "Must be a duration, such as 30s, 5min, 2h or 4d."),
        ("Backlog limit", "10", "Must be 1,000,000 to 100,000,000."),
    ],
)
def test_a_value_out_of_range_is_explained_beside_its_field(
    visits: Visits, account: Account, label: str, typed: str, fault: str
):
    page = visits.sign_in(account.key, "queues")
    page.get_by_role("button", name="Create queue").click()
    dialog = dialog_of(page)
    dialog.get_by_label("Name", exact=True).fill("orders")
    field = dialog.get_by_label(label, exact=True)
    field.fill(typed)
    dialog.get_by_role("button", name="Create queue").click()

    expect(dialog.get_by_text(fault)).to_be_visible()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()
    assert list(account.client.queues()) == []


def test_a_refusal_of_the_broker_is_shown_and_the_values_stay(visits: Visits, account: Account):
    account.client.create_queue("Orders")
    page = visits.sign_in(account.key, "queues")
    page.get_by_role("button", name="Create queue").click()
    dialog = dialog_of(page)
    dialog.get_by_label("Name", exact=True).fill("orders")
    dialog.get_by_role("button", name="Create queue").click()

    expect(dialog.locator(".fault")).to_have_text(re.compile("differs only"))
    expect(dialog.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(dialog.get_by_label("Name", exact=True)).to_have_value("orders")
    dialog.get_by_label("Give up on a message").select_option("age")
    dialog.get_by_label("Name", exact=True).fill("jobs")
    dialog.get_by_label("Dead-letter queue", exact=True).fill("absent")
    dialog.get_by_role("button", name="Create queue").click()
    expect(dialog.get_by_text(re.compile("'absent' does not exist"))).to_be_visible()
    expect(dialog.get_by_label("Dead-letter queue", exact=True)).to_have_attribute("aria-invalid", "true")


def test_attributes_are_edited_from_the_list_and_others_stay(visits: Visits, account: Account):
    some_queues(account)
    account.client.queue("orders").set_attributes(max_message_bytes=2_048, delay=5)
    page = visits.sign_in(account.key, "queues")
    page.get_by_role("button", name="Edit orders", exact=True).click()
    dialog = dialog_of(page)
    expect(dialog.get_by_label("Delay", exact=True)).to_have_value("5s")
    expect(dialog.get_by_label("Dead-letter queue", exact=True)).to_have_value("orders-dead")
    expect(dialog.get_by_label("Transactional")).to_have_count(0)

    dialog.get_by_label("Retention").fill("2h")
    dialog.get_by_label("Give up on a message").select_option("none")
    dialog.get_by_role("button", name="Save").click()

    expect(page.get_by_text("Queue orders saved")).to_be_visible()
    info = account.client.queue("orders").attributes()
    assert (info.retention, info.delay, info.max_message_bytes) == (7_200, 5, 2_048)
    assert (info.dead_letter_queue, info.dead_letter_max_receives) == ("", 0)


def test_attributes_are_edited_on_the_page_of_the_queue(visits: Visits, account: Account):
    account.client.create_queue("orders")
    page = visits.sign_in(account.key, "queues/orders")
    page.get_by_role("button", name="Edit").click()
    dialog = dialog_of(page)

    dialog.get_by_label("Polling wait").fill("20s")
    dialog.get_by_role("button", name="Save").click()

    expect(page.get_by_text("Attributes saved")).to_be_visible()
    assert account.client.queue("orders").attributes().polling_wait == 20


def test_the_dialog_closes_with_escape_and_the_focus_returns(visits: Visits, account: Account):
    account.client.create_queue("orders")
    page = visits.sign_in(account.key, "queues")
    button = page.get_by_role("button", name="Create queue")
    button.focus()
    page.keyboard.press("Enter")
    dialog = dialog_of(page)

    page.keyboard.press("Escape")

    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()


# ---------------------------------------------------------------- rewind


def deleted(account: Account, *bodies: bytes) -> None:
    """A queue with a rewind window and these messages, each sent in a second of its own and deleted."""
    queue = account.client.create_queue("orders", rewind=86_400)
    for body in bodies:
        queue.send(body)
    for message in queue.receive(len(bodies), wait=0):
        message.delete()
    assert queue.attributes().rewindable == len(bodies)


def test_a_rewind_shows_how_many_messages_come_back_and_brings_them_back(visits: Visits, account: Account):
    deleted(account, b"1", b"2", b"3")
    page = visits.sign_in(account.key, "queues/orders")
    page.get_by_role("button", name="Rewind", exact=True).click()
    dialog = dialog_of(page)

    expect(dialog.get_by_text("3 messages come back")).to_be_visible()
    dialog.get_by_role("button", name="Rewind", exact=True).click()

    expect(page.get_by_text("3 messages are active again")).to_be_visible()
    expect(dialog).to_have_count(0)
    info = account.client.queue("orders").attributes()
    assert (info.active, info.rewindable) == (3, 0)


def test_another_time_is_counted_anew(visits: Visits, account: Account):
    deleted(account, b"1", b"2", b"3")
    first_ms = account.client.queue("orders").preview_rewind().oldest
    assert first_ms is not None
    # The latest time of the range is now: the range grows until the slider can tell the sends from now.
    eventually_elsewhere(
        lambda: (account.client.queue("orders").preview_rewind().latest - first_ms).total_seconds() > 2
    )
    page = visits.sign_in(account.key, "queues/orders")
    page.get_by_role("button", name="Rewind", exact=True).click()
    dialog = dialog_of(page)
    expect(dialog.get_by_text("3 messages come back")).to_be_visible()

    slider = dialog.get_by_role("slider")
    slider.focus()
    page.keyboard.press("End")

    expect(dialog.get_by_text("0 messages come back")).to_be_visible()
    expect(dialog.get_by_role("button", name="Rewind", exact=True)).to_be_disabled()
    page.keyboard.press("Home")
    expect(dialog.get_by_text("3 messages come back")).to_be_visible()
    expect(dialog.get_by_role("button", name="Everything")).to_have_attribute("aria-pressed", "true")
    dialog.get_by_label("Sent since").fill("2030-01-01T00:00:00")
    dialog.get_by_label("Sent since").press("Tab")
    expect(dialog.get_by_text("0 messages come back")).to_be_visible()
    assert account.client.queue("orders").attributes().rewindable == 3


def test_a_queue_without_a_window_teaches_how_to_set_it(visits: Visits, account: Account):
    account.client.create_queue("orders")
    page = visits.sign_in(account.key, "queues/orders")
    page.get_by_role("button", name="Rewind", exact=True).click()
    dialog = dialog_of(page)

    expect(dialog.get_by_text("This queue keeps no deleted messages.")).to_be_visible()
    expect(dialog.get_by_text("cmq queue set orders --rewind 1d")).to_be_visible()


def test_a_window_without_deleted_messages_says_so(visits: Visits, account: Account):
    account.client.create_queue("orders", rewind=86_400).send(b"1")
    page = visits.sign_in(account.key, "queues/orders")
    page.get_by_role("button", name="Rewind", exact=True).click()

    expect(dialog_of(page).get_by_text("No deleted message can come back.")).to_be_visible()


def test_deleted_messages_behind_an_unconsumed_one_come_back_together(visits: Visits, account: Account):
    queue = account.client.create_queue("orders", rewind=86_400)
    queue.send(b"stays")
    queue.receive(1, wait=0, visibility_timeout=3_600)
    queue.send_batch([b"1", b"2"])
    for message in queue.receive(2, wait=0):
        message.delete()
    page = visits.sign_in(account.key, "queues/orders")
    page.get_by_role("button", name="Rewind", exact=True).click()
    dialog = dialog_of(page)

    expect(dialog.get_by_text("2 messages come back")).to_be_visible()
    expect(dialog.get_by_role("slider")).to_have_count(0)
    dialog.get_by_role("button", name="Rewind", exact=True).click()

    expect(page.get_by_text("2 messages are active again")).to_be_visible()


# ---------------------------------------------------------------- screen readers


def expect_no_serious_fault(page: Page) -> None:
    page.evaluate(AXE_FILE.read_text())
    report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [violation for violation in report["violations"] if violation["impact"] in ("serious", "critical")]
    assert [(violation["id"], [node["html"] for node in violation["nodes"]]) for violation in serious] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_dialogs(visits: Visits, account: Account, scheme: str):
    deleted(account, b"1")
    page = visits.sign_in(account.key, "queues", color_scheme=scheme)
    page.get_by_role("button", name="Create queue").click()
    dialog = dialog_of(page)
    for label in ("Keep deleted messages", "Transactional", "Delete the queue when it is unused"):
        dialog.get_by_label(label).check()
    dialog.get_by_label("Give up on a message").select_option("receives")
    dialog.get_by_role("button", name="Create queue").click()
    expect(dialog.locator(".fault").first).to_be_visible()
    expect_no_serious_fault(page)

    page.goto(f"{visits.broker.console}queues/orders")
    page.get_by_role("button", name="Rewind", exact=True).click()
    expect(dialog_of(page).get_by_text("1 message comes back")).to_be_visible()
    expect_no_serious_fault(page)


def test_an_attribute_that_the_console_does_not_know_has_a_field_and_a_fact_from_its_declaration(
    visits: Visits, account: Account
):
    account.client.create_queue("orders")
    page = visits.sign_in(account.key, "queues")
    declare(page, {"QueueAttributes": {"colour": "seconds"}}, {"/queues/orders": {"colour": 7}})
    page.get_by_role("button", name="Create queue").click()

    field = dialog_of(page).get_by_label("Name of colour")
    expect(field).to_have_value("5s")
    expect(dialog_of(page).get_by_text("Meaning of colour.")).to_be_visible()
    field.fill("7s")
    dialog_of(page).get_by_text("The same on the command line").click()
    expect(dialog_of(page).locator("details code")).to_contain_text("--colour 7s")
    page.keyboard.press("Escape")

    page.get_by_role("link", name="orders").click()
    expect(page.locator(".facts > div").filter(has_text="Name of colour")).to_contain_text("7 s")
