"""The page of the audit trail: entries, filters, pages, new entries, and the links of objects and keys."""

import re

from playwright.sync_api import Locator, Page, expect

from support.console.console_rig import Account, ConsoleBroker, Visits

HEAD = 1
"""Rows of a table above its entries."""


def rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Administrative operations").get_by_role("row")


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def test_entries_tell_time_operation_object_request_key_and_address(visits: Visits, account: Account):
    account.client.create_queue("orders", delay=5)
    account.client.queue("orders").set_attributes(visibility_timeout=60)
    account.client.create_queue("gone")
    account.client.delete_queue("gone")
    page = visits.sign_in(account.key, "audit")

    expect(page.get_by_role("heading", level=1)).to_have_text("Audit")
    # The creation of the account's key, by admin, is an entry of the account too.
    expect(rows(page)).to_have_count(HEAD + 5)
    deleted, _, changed, created, first = rows(page).all()[HEAD:]
    expect(deleted).to_contain_text("Queue deleted")
    expect(deleted).to_contain_text("gone")
    expect(changed).to_contain_text("visibility_timeout_ms=60000")
    expect(created).to_contain_text("delay_ms=5000")
    expect(created).to_contain_text(account.key.secret_id)
    expect(created).to_contain_text("this key")
    expect(created).to_contain_text(re.compile(r"127\.0\.0\.1:\d+"))
    expect(first).to_contain_text("Account created")
    expect(first).to_contain_text("by account admin")
    expect(deleted.get_by_role("link")).to_have_count(0)

    changed.get_by_role("link", name="orders").click()
    expect(page).to_have_url(re.compile("/console/queues/orders$"))


def test_the_filters_are_in_the_address_and_can_be_cleared(visits: Visits, account: Account):
    account.seed()
    page = visits.sign_in(account.key, "audit")
    expect(rows(page).nth(HEAD)).to_be_visible()

    page.get_by_role("searchbox").fill("NIGHTLY")
    expect(rows(page)).to_have_count(HEAD + 1)
    expect(rows(page).last).to_contain_text("Schedule created")
    page.get_by_role("combobox", name="Operation").select_option("create_topic")
    expect(page.get_by_text("No entry matches the filter.")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/audit\?search=NIGHTLY&operation=create_topic$"))

    page.get_by_role("searchbox").fill("")
    expect(rows(page)).to_have_count(HEAD + 2)
    page.reload()
    expect(rows(page)).to_have_count(HEAD + 2)
    page.get_by_role("combobox", name="Period").select_option("hour")
    expect(rows(page)).to_have_count(HEAD + 2)
    button(page, "Clear the filter").click()
    expect(page.get_by_role("combobox", name="Operation")).to_have_value("")
    expect(page).to_have_url(re.compile(r"/console/audit$"))
    expect(rows(page).nth(HEAD + 5)).to_be_visible()


def test_a_long_trail_has_pages(visits: Visits, account: Account):
    for number in range(60):
        account.client.create_queue(f"queue-{number:02}")
    page = visits.sign_in(account.key, "audit")

    expect(rows(page)).to_have_count(HEAD + 50)
    expect(rows(page).nth(HEAD)).to_contain_text("queue-59")
    expect(button(page, "Newer")).to_be_disabled()
    button(page, "Older").click()
    expect(rows(page)).to_have_count(HEAD + 11)
    expect(rows(page).nth(HEAD)).to_contain_text("queue-09")
    expect(button(page, "Older")).to_be_disabled()
    button(page, "Newer").click()
    expect(rows(page).nth(HEAD)).to_contain_text("queue-59")


def test_new_entries_are_announced_and_shown_when_asked_for(visits: Visits, account: Account):
    account.client.create_queue("orders")
    page = visits.sign_in(account.key, "audit")
    expect(rows(page)).to_have_count(HEAD + 2)

    account.client.delete_queue("orders")
    button(page, "1 new entry").click()

    expect(rows(page).nth(HEAD)).to_contain_text("Queue deleted")
    expect(button(page, "1 new entry")).to_have_count(0)


def test_a_key_filters_its_operations(visits: Visits, account: Account):
    other = account.make_key("manage")
    client = account.broker.client_of(other)
    client.create_queue("by-other")
    client.close()
    account.client.create_queue("by-owner")
    page = visits.sign_in(account.key, "audit")
    expect(rows(page)).to_have_count(HEAD + 4)

    rows(page).filter(has_text="by-other").get_by_role("button", name=other.secret_id).click()

    # The creation of the key, and the key's own operation.
    expect(rows(page)).to_have_count(HEAD + 2)
    expect(page.get_by_role("searchbox")).to_have_value(other.secret_id)


def test_admin_chooses_an_account(visits: Visits, broker: ConsoleBroker, account: Account):
    account.client.create_queue("of-the-account")
    broker.client.ensure_queue("of-admin")
    page = visits.sign_in(broker.admin, "audit")
    expect(rows(page).filter(has_text="of-admin")).to_be_visible()
    expect(rows(page).filter(has_text=f"{account.name} / of-the-account")).to_be_visible()

    page.get_by_role("combobox", name="Account").select_option(account.name)

    expect(rows(page)).to_have_count(HEAD + 2)
    expect(rows(page).filter(has_text="of-admin")).to_have_count(0)


def test_a_disabled_and_an_enabled_key_are_told_apart(visits: Visits, account: Account):
    other = account.make_key("send")
    account.client.accounts.set_key_enabled(other.secret_id, False)
    account.client.accounts.set_key_enabled(other.secret_id, True)
    page = visits.sign_in(account.key, "audit")

    expect(rows(page).nth(HEAD)).to_contain_text("Key enabled")
    expect(rows(page).nth(HEAD + 1)).to_contain_text("Key disabled")


def test_without_the_role_the_page_is_not_offered_and_says_why(visits: Visits, account: Account):
    page = visits.sign_in(account.make_key("read"), "audit")

    expect(page.get_by_role("alert")).to_contain_text("The roles and names of your key do not allow this.")
    expect(page.get_by_role("navigation").get_by_role("link", name="Audit")).to_have_count(0)


def test_the_page_is_in_chinese_on_a_phone(visits: Visits, account: Account):
    account.client.create_queue("orders")
    page = visits.sign_in(account.key, "audit", locale="zh-CN", viewport={"width": 390, "height": 844})

    expect(page.get_by_role("heading", level=1)).to_have_text("操作审计")
    expect(page.get_by_text("创建队列").last).to_be_visible()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "nothing is wider than the phone"
