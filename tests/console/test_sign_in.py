"""Signing in with a key or a link, signing out, and pages that are asked for before the sign-in."""

import re

from playwright.sync_api import Page, Route, expect

from support.console.console_rig import Account, ConsoleBroker, Visits


def fill_in(page: Page, secret_id: str, secret_key: str) -> None:
    page.locator("input[name=secret_id]").fill(secret_id)
    page.locator("input[name=secret_key]").fill(secret_key)
    page.locator("button[type=submit]").click()


def test_a_key_signs_in_and_the_page_that_was_asked_for_is_shown(visits: Visits, account: Account):
    page = visits.stranger()
    page.goto(f"{visits.broker.console}topics")
    expect(page.locator("h1")).to_contain_text("cmqd")

    fill_in(page, account.key.secret_id, account.key.secret_key)

    expect(page.locator("nav")).to_be_visible()
    expect(page).to_have_url(re.compile("/console/topics$"))
    page.reload()
    expect(page.locator("nav")).to_be_visible()


def test_a_wrong_secret_is_said_in_words_and_not_kept(visits: Visits, account: Account):
    page = visits.stranger()
    page.goto(f"{visits.broker.console}topics")

    fill_in(page, account.key.secret_id, "wrong")

    expect(page.get_by_role("alert").first).to_be_visible()
    stored = page.evaluate("JSON.stringify([localStorage, sessionStorage])")
    assert "wrong" not in stored


def test_the_browser_keeps_no_secret(visits: Visits, account: Account):
    page = visits.stranger()
    page.goto(f"{visits.broker.console}topics")
    fill_in(page, account.key.secret_id, account.key.secret_key)
    expect(page.locator("nav")).to_be_visible()

    stored = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert account.key.secret_key not in stored
    assert account.key.secret_key not in page.content()
    cookies = page.context.cookies()
    assert [(cookie.get("httpOnly"), cookie.get("sameSite")) for cookie in cookies] == [(True, "Strict")]
    assert cookies[0].get("value", "").count(".") == 4


def test_a_link_signs_in_once_and_leaves_the_address(visits: Visits, account: Account):
    link = visits.link(account.key)
    page = visits.stranger()
    page.goto(link)
    expect(page.locator("nav")).to_be_visible()
    assert "token" not in page.url

    second = visits.stranger()
    second.goto(link)
    expect(second.locator("#toasts")).to_contain_text("the sign-in link has been used already")
    expect(second.locator("input[name=secret_key]")).to_be_visible()


def test_a_sign_out_ends_the_session(page: Page, broker: ConsoleBroker):
    cookies = page.context.cookies()
    page.get_by_role("button", name="Sign out").click()

    expect(page.locator("input[name=secret_key]")).to_be_visible()
    assert page.context.cookies() == []
    page.context.add_cookies(cookies)  # pyright: ignore[reportArgumentType]
    page.goto(f"{broker.console}topics")
    expect(page.locator("input[name=secret_key]")).to_be_visible()


def test_a_sign_out_without_an_answer_is_said_and_the_session_goes_on(page: Page, broker: ConsoleBroker):
    page.route(
        "**/console/session", lambda route: route.abort() if route.request.method == "DELETE" else route.continue_()
    )

    page.get_by_role("button", name="Sign out").click()

    expect(page.get_by_text("You are still signed in")).to_be_visible()
    page.unroute_all()
    page.goto(f"{broker.console}queues")
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()


def test_a_page_whose_file_did_not_come_is_loaded_with_a_new_document(page: Page):
    failed: list[str] = []

    def fail_once(route: Route) -> None:
        if failed:
            route.continue_()
        else:
            failed.append(route.request.url)
            route.abort()

    page.route(re.compile(r"/pages/schedules\.js$"), fail_once)

    page.get_by_role("link", name="Schedules").click()

    expect(page.get_by_role("heading", name="Schedules", level=1)).to_be_visible()
    assert len(failed) == 1


def test_a_disabled_key_ends_its_session_at_the_next_request(visits: Visits, account: Account):
    key = account.make_key("read")
    page = visits.sign_in(key, "topics")
    visits.broker.client.accounts.set_key_enabled(key.secret_id, False, account=account.name)

    page.goto(f"{visits.broker.console}topics")

    expect(page.locator("input[name=secret_key]")).to_be_visible()


def test_a_seeded_account_has_a_message_in_each_state(account: Account):
    account.seed()

    info = account.client.queue("orders").attributes()
    assert (info.active, info.in_flight, info.delayed) == (12, 3, 1)
    assert info.dead_letter_queue == "orders-dead"
