"""Answers that come late, in another order, or not at all; forms that are changed or closed meanwhile."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from support.console.console_rig import Account, Visits

MANY = 22
"""More queues than a page has: then there is a search."""


def button(page: Page | Locator, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


class Held:
    """Requests whose answers wait until the test lets them go."""

    def __init__(self, page: Page, is_held: Callable[[Route], bool]) -> None:
        self._page = page
        self._is_held: Callable[[Route], bool] = is_held
        self.routes: list[Route] = []
        page.route("**/api/v1/**", self._take)

    def _take(self, route: Route) -> None:
        if self._is_held(route):
            self.routes.append(route)
        else:
            route.fallback()

    def wait(self) -> None:
        """Wait until a request is held."""
        while not self.routes:
            self._page.wait_for_event("request")

    def release(self) -> None:
        """Answer the held requests, and later requests at once."""
        self._is_held = lambda _: False
        for route in self.routes:
            with self._page.expect_response(lambda response, url=route.request.url: response.url == url):
                route.continue_()


def make_dead_letter_queues(account: Account) -> None:
    for number in range(MANY):
        account.client.create_queue(f"dead-{number:02}")
        account.client.create_queue(
            f"orders-{number:02}", dead_letter_queue=f"dead-{number:02}", dead_letter_max_receives=2
        )


def make_transactional_queues(account: Account) -> None:
    for number in range(MANY):
        account.client.create_queue(f"dead-{number:02}", transactional=True)


def make_schedules(account: Account) -> None:
    account.client.create_queue("orders")
    for number in range(MANY):
        account.client.schedules.create(f"dead-{number:02}", "orders", "0 3 * * *", b"x")


@pytest.mark.parametrize(
    ("path", "table", "make"),
    [
        ("dead-letters", "Dead letters", make_dead_letter_queues),
        ("half-messages", "Transactional queue", make_transactional_queues),
        ("schedules", "Schedules", make_schedules),
    ],
)
def test_the_answer_to_an_earlier_search_does_not_replace_the_later_list(
    page: Page, account: Account, path: str, table: str, make: Callable[[Account], None]
):
    make(account)
    page.goto(path)
    rows = page.get_by_role("table", name=table, exact=True).get_by_role("row")
    expect(rows.nth(15)).to_be_visible()
    held = Held(page, lambda route: route.request.url.split("search=")[-1].split("&")[0] == "dead-0")

    page.get_by_role("searchbox").fill("dead-0")
    held.wait()
    page.get_by_role("searchbox").fill("dead-07")
    expect(rows).to_have_count(2)
    held.release()

    expect(page.get_by_role("searchbox")).to_have_value("dead-07")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert rows.count() == 2


def test_a_search_typed_before_the_page_is_left_stays_out_of_the_next_address(page: Page, account: Account):
    account.client.create_topic("shop")
    page.goto("topics")
    expect(page.get_by_role("link", name="shop")).to_be_visible()
    page.clock.install()

    # Both in one moment, as by a fast hand.
    page.get_by_role("searchbox").evaluate(
        """(input) => {
          input.value = 'sh';
          input.dispatchEvent(new Event('input', { bubbles: true }));
          document.querySelector('a[href="/console/queues"]').click();
        }"""
    )
    page.clock.run_for(1_000)

    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    expect(page).to_have_url(re.compile("/console/queues$"))


def test_a_repeat_after_a_lost_answer_publishes_the_message_once(page: Page, account: Account):
    client = account.client
    client.create_queue("orders")
    client.create_topic("shop").subscribe("billing", queue="orders")
    page.goto("topics/shop")
    button(page, "Publish message").click()
    dialog = page.get_by_role("dialog")
    keys: list[str] = []

    def lose_first(route: Route) -> None:
        if route.request.method != "POST":
            route.fallback()
            return
        keys.append(route.request.headers.get("idempotency-key", ""))
        if len(keys) == 1:
            # The message is published; its answer does not arrive.
            route.fetch()
            route.abort()
        else:
            route.fallback()

    page.route("**/topics/shop/messages", lose_first)
    dialog.get_by_label("Body").fill("once")
    button(dialog, "Publish").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    button(dialog, "Publish").click()
    expect(dialog.get_by_role("status")).to_contain_text("had been published before")
    assert [message.body for message in client.queue("orders").peek()] == [b"once"]

    # The same text once more is another message: the outcome of the first message is on the page.
    button(dialog, "Publish").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 subscription gets the message")
    assert [message.body for message in client.queue("orders").peek()] == [b"once", b"once"]
    assert keys[0] == keys[1] != keys[2]


def test_the_field_of_a_choice_that_was_taken_back_does_not_refuse_the_form(page: Page, account: Account):
    account.seed()
    page.goto("dead-letters?queue=orders-dead")
    button(page, "Start a redrive").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Where to").select_option("target")
    expect(dialog.get_by_label("Queue")).to_be_visible()
    dialog.get_by_label("Where to").select_option("origin")
    button(dialog, "Start a redrive").click()

    expect(page.locator(".redrive")).to_contain_text("The last redrive moved")


def test_an_id_that_is_being_typed_is_not_looked_up_by_the_live_page(page: Page, account: Account):
    account.client.create_queue("orders")
    topic = account.client.create_topic("shop")
    topic.subscribe("billing", queue="orders")
    # A message that waits stays known to its topic.
    topic.subscription("billing").pause()
    message = topic.publish(b"x").id
    page.clock.install()
    page.goto(f"topics/shop?view=report&message={message}")
    expect(page.get_by_role("table", name="Message lookup")).to_be_visible()

    page.get_by_label("Message id").fill("Msg-00")
    with page.expect_response(re.compile(r"/messages/Msg-[0-9a-f]{16}/deliveries$")):
        page.clock.run_for(10_000)

    expect(page.get_by_text("An id is Msg- and 16 hex digits.")).to_have_count(0)
    expect(page.get_by_label("Message id")).to_have_value("Msg-00")


def test_a_new_key_is_shown_though_its_dialog_was_closed_before_the_answer(visits: Visits, account: Account):
    page = visits.sign_in(account.key, "keys")
    button(page, "Create key").click()
    held = Held(page, lambda route: route.request.method == "POST")
    button(page.get_by_role("dialog"), "Create key").click()
    held.wait()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    held.release()

    expect(page.get_by_role("dialog").get_by_text("The secret is shown only now.")).to_be_visible()
    assert len(list(account.client.accounts.keys())) == 2


def test_a_page_goes_on_after_a_new_sign_in_on_another_page_of_the_browser(visits: Visits, account: Account):
    account.client.create_queue("orders")
    page = visits.sign_in(account.key, "queues/orders")
    expect(page.locator(".life")).to_be_visible()
    secret_id, secret_key = account.key.secret_id, account.key.secret_key
    reply = page.context.request.post(
        f"{page.url.split('/console/')[0]}/console/session",
        data=json.dumps({"secret_id": secret_id, "secret_key": secret_key}),
        headers={"Content-Type": "application/json"},
    )
    assert reply.ok

    button(page, "Purge").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("orders")
    with page.expect_response("**/console/session"):
        dialog.get_by_role("button", name="Purge").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    dialog.get_by_role("button", name="Purge").click()

    expect(dialog).to_have_count(0)
