"""The pages of topics: lists, forms, subscriptions, the filter tester, publishes, and messages in delivery."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from support.console.console_rig import Account, Visits
from support.console.declarations import declare

NOWHERE = "http://127.0.0.1:9/hook"
"""The broker of the tests does not post to its own machine: each attempt fails at once."""


def button(page: Page | Locator, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def submit(page: Page, name: str) -> None:
    button(dialog(page), name).click()


def confirm(page: Page, name: str, action: str) -> None:
    """Type a name into the open dialog and carry out the action."""
    dialog(page).get_by_role("textbox").fill(name)
    submit(page, action)
    expect(dialog(page)).to_have_count(0)


def go(page: Page, path: str) -> None:
    page.goto(f"{page.url.split('/console/')[0]}/console/{path}")


def row(page: Page | Locator, text: str) -> Locator:
    return page.get_by_role("row").filter(has_text=text)


# ---------------------------------------------------------------------- the list


@pytest.mark.parametrize(("filter_type", "shown"), [("tag", "tags"), ("routing", "routing key")])
def test_a_topic_is_created_changed_and_deleted(page: Page, account: Account, filter_type: str, shown: str):
    expect(page.get_by_role("heading", name="No topics yet")).to_be_visible()
    expect(page.get_by_text("cmq topic create shop")).to_be_visible()
    button(page, "Create topic").first.click()
    dialog(page).get_by_label("Name").fill("no")
    submit(page, "Create topic")
    expect(dialog(page).get_by_text("Must be 3 to 64 ASCII letters")).to_be_visible()
    expect(dialog(page).get_by_label("Name")).to_be_focused()

    dialog(page).get_by_label("Name").fill("shop")
    dialog(page).get_by_label("Filter").select_option(filter_type)
    dialog(page).get_by_label("Longest body").fill("2048")
    submit(page, "Create topic")

    expect(page).to_have_url(re.compile("/console/topics/shop$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"shop{shown}")
    info = account.client.topic("shop").attributes()
    assert (info.filter_type, info.max_message_bytes) == (filter_type, 2048)

    button(page, "Edit").click()
    size = dialog(page).get_by_label("Longest body")
    size.fill("1000")
    submit(page, "Save")
    expect(dialog(page).get_by_text("Must be 1,024 to 1,048,576.")).to_be_visible()
    size.fill("4096")
    submit(page, "Save")
    expect(page.get_by_text("4 KiB")).to_be_visible()

    button(page, "Delete").click()
    dialog(page).get_by_role("textbox").fill("other")
    submit(page, "Delete")
    expect(dialog(page).get_by_text("Type shop to confirm").last).to_be_visible()
    assert account.client.topics().names == ["shop"]
    confirm(page, "shop", "Delete")
    expect(page).to_have_url(re.compile("/console/topics$"))
    expect(page.get_by_role("heading", name="No topics yet")).to_be_visible()
    assert account.client.topics().names == []


def test_topics_are_listed_searched_and_paged(page: Page, account: Account):
    account.client.create_queue("orders")
    for number in range(30):
        account.client.create_topic(f"topic-{number:02}", filter_type="routing" if number % 2 else "tag")
    account.client.topic("topic-01").subscribe("copies", queue="orders", binding_keys=["#"])

    table = page.get_by_role("table", name="Topics")
    expect(table.get_by_role("row")).to_have_count(26)
    expect(row(table, "topic-01")).to_contain_text("routing key1")
    expect(page.get_by_text(re.compile("^1.25 of 30$"))).to_be_visible()
    button(page, "Next").click()
    expect(table.get_by_role("link", name="topic-29")).to_be_visible()
    expect(page).to_have_url(re.compile("offset=25"))

    page.get_by_role("searchbox").fill("-07")
    expect(table.get_by_role("row")).to_have_count(2)
    page.reload()
    expect(page.get_by_role("searchbox")).to_have_value("-07")
    expect(table.get_by_role("row")).to_have_count(2)
    page.get_by_role("searchbox").fill("none")
    expect(page.get_by_text("No topic has “none” in its name.")).to_be_visible()


def test_a_topic_with_subscriptions_is_not_deleted_and_the_page_says_why(page: Page, account: Account):
    account.client.create_queue("orders")
    account.client.create_topic("shop").subscribe("copies", queue="orders")
    button(row(page, "shop"), "Delete shop").click()

    dialog(page).get_by_role("textbox").fill("shop")
    submit(page, "Delete")

    expect(dialog(page).get_by_role("alert")).to_contain_text("subscription")
    assert account.client.topics().names == ["shop"]


def test_a_topic_that_does_not_exist_leads_back(page: Page):
    go(page, "topics/nowhere")

    expect(page.get_by_role("heading", name="This topic does not exist")).to_be_visible()
    page.get_by_role("link", name="All topics").click()
    expect(page).to_have_url(re.compile("/console/topics$"))


# ---------------------------------------------------------------------- subscriptions


def test_a_queue_is_subscribed_changed_paused_and_unsubscribed(page: Page, account: Account):
    client = account.client
    client.create_queue("orders")
    client.create_topic("shop")
    go(page, "topics/shop")
    expect(page.get_by_role("heading", name="No subscriptions yet")).to_be_visible()
    expect(page.get_by_text("cmq sub create shop billing")).to_be_visible()

    button(page, "Subscribe").click()
    dialog(page).get_by_label("Name").fill("billing")
    queue = dialog(page).get_by_label("Queue")
    queue.fill("ordres")
    dialog(page).get_by_label("Filter tags").fill("paid, refunded")
    submit(page, "Subscribe")
    expect(dialog(page).get_by_text("queue 'ordres' does not exist")).to_be_visible()
    queue.fill("orders")
    submit(page, "Subscribe")

    expect(dialog(page)).to_have_count(0)
    billing = row(page, "billing")
    expect(billing).to_contain_text("paid")
    expect(billing).to_contain_text("Active")
    expect(billing.get_by_role("link", name="orders")).to_have_attribute("href", "/console/queues/orders")
    subscription = client.topic("shop").subscription("billing")
    assert subscription.info().filter_tags == ["paid", "refunded"]

    billing.get_by_role("button", name="billing").click()
    # The panel has an Edit of its own, below that of the topic.
    expect(button(page, "Edit")).to_have_count(2)
    button(page, "Edit").last.click()
    dialog(page).get_by_label("Retries").select_option("backoff")
    submit(page, "Save")
    expect(page.get_by_text("in order, three times, then dropped")).to_be_visible()
    info = subscription.info()
    assert (info.filter_tags, info.strategy) == (["paid", "refunded"], "backoff")

    button(page, "Pause").click()
    expect(page.get_by_text("Deliveries are paused.")).to_be_visible()
    expect(billing.first).to_contain_text("Paused")
    published = client.topic("shop").publish(b"waits", tags=["paid"])
    messages = page.get_by_role("table", name="Messages in delivery")
    expect(row(messages, published.id)).to_contain_text("waiting")
    assert client.queue("orders").receive(wait=0) == []
    button(page, "Resume").click()
    expect(page.get_by_text("No message waits for this subscription.")).to_be_visible()
    assert [message.body for message in client.queue("orders").receive(wait=10)] == [b"waits"]

    button(page, "Unsubscribe").click()
    confirm(page, "billing", "Unsubscribe")
    expect(page.get_by_role("heading", name="No subscriptions yet")).to_be_visible()
    assert len(client.topic("shop").subscriptions()) == 0


def test_a_url_is_subscribed_and_its_secrets_are_shown_once(page: Page, account: Account):
    account.client.create_topic("repository", filter_type="routing")
    go(page, "topics/repository")
    button(page, "Subscribe").click()
    dialog(page).get_by_label("Name").fill("partner")
    dialog(page).get_by_label("Deliver to").select_option("url")
    dialog(page).get_by_label("URL", exact=True).fill("ftp://partner.example/hook")
    dialog(page).get_by_label("Binding keys").fill("src.#\n*.md")
    submit(page, "Subscribe")
    expect(dialog(page).locator(".fault")).to_contain_text("http")
    dialog(page).get_by_label("URL", exact=True).fill(NOWHERE)
    submit(page, "Subscribe")

    expect(dialog(page).get_by_role("heading", name="The secret of partner")).to_be_visible()
    secret = dialog(page).locator("pre").inner_text()
    assert secret.startswith("whsec_")
    button(dialog(page), "I have kept it").click()
    # Not the role: a closed dialog has none, and leaves the page at the event that follows.
    expect(page.locator("dialog")).to_have_count(0)
    info = account.client.topic("repository").subscription("partner").info()
    assert (info.binding_keys, info.endpoint, info.content_format) == (["src.#", "*.md"], NOWHERE, "json")
    assert secret not in page.content()

    page.get_by_role("button", name="partner").click()
    button(page, "Rotate secret").click()
    overlap = dialog(page).get_by_label("Overlap")
    overlap.fill("9d")
    submit(page, "Rotate secret")
    expect(dialog(page).get_by_text("Must be 0 s to 7 d.")).to_be_visible()
    overlap.fill("2h")
    submit(page, "Rotate secret")
    expect(dialog(page).get_by_text("The old secret signs as well until")).to_be_visible()
    assert dialog(page).locator("pre").inner_text() not in {secret, ""}


def test_failed_deliveries_are_seen_retried_and_dropped(page: Page, account: Account):
    topic = account.client.create_topic("shop")
    topic.subscribe("hook", url=NOWHERE)
    ids = [topic.publish(body, headers={"trace": "7"}).id for body in (b'{"order": "one"}', b"two", b"three")]
    go(page, "topics/shop?subscription=hook")

    messages = page.get_by_role("table", name="Messages in delivery")
    expect(messages.get_by_role("row")).to_have_count(4)
    first = row(messages, ids[0])
    expect(first).to_contain_text("in retry")
    error = topic.subscription("hook").info().last_error
    assert error
    expect(first).to_contain_text(error)
    expect(page.locator(".facts").get_by_text(error)).to_be_visible()
    expect(page.locator(".facts").get_by_text("Next attempt")).to_be_visible()

    first.get_by_role("button", name="Body").click()
    body = page.get_by_role("region", name=f"Body {ids[0]}")
    expect(body).to_contain_text('"order"')
    expect(page.get_by_text("trace")).to_be_visible()
    first.get_by_role("button", name="Body").click()
    expect(body).to_have_count(0)

    button(page, "Retry now").click()
    expect(page.get_by_text("3 failed messages are retried")).to_be_visible()

    first.get_by_role("button", name="Drop").click()
    submit(page, "Drop")
    expect(messages.get_by_role("row")).to_have_count(3)
    row(messages, ids[1]).get_by_role("button", name="Who has had it").click()
    report = page.get_by_role("table", name="Message lookup")
    expect(row(report, "hook")).to_contain_text("in retry")
    page.get_by_label("Message id").fill(ids[0])
    button(page, "Look up").click()
    expect(row(report, "hook")).to_contain_text("dropped by hand")

    page.get_by_role("tab", name="Subscriptions").click()
    button(page, "Drop waiting").click()
    confirm(page, "hook", "Drop waiting")
    expect(page.get_by_text("No message waits for this subscription.")).to_be_visible()
    assert topic.subscription("hook").info().dropped == 3


# ---------------------------------------------------------------------- declarations


def test_attributes_that_the_console_does_not_know_have_fields_and_facts_from_their_declarations(
    visits: Visits, account: Account
):
    account.client.create_topic("shop").subscribe("hook", url=NOWHERE)
    page = visits.sign_in(account.key, "topics")
    declare(
        page,
        {
            "TopicAttributes TopicChanges": {"colour": "seconds"},
            "NewSubscription SubscriptionChanges": {"shades": "texts", "hue": "choice"},
        },
        {"/topics/shop": {"colour": 7}, "/topics/shop/subscriptions/hook": {"shades": ["u", "v"], "hue": "b"}},
    )
    expect(row(page, "shop")).to_contain_text("7 s")
    button(page, "Create topic").click()
    expect(dialog(page).get_by_label("Name of colour")).to_have_value("5s")
    expect(dialog(page).get_by_text("Meaning of colour.")).to_be_visible()
    page.keyboard.press("Escape")

    page.get_by_role("link", name="shop").click()
    expect(page.locator(".figure").filter(has_text="Name of colour")).to_contain_text("7 s")
    page.get_by_role("button", name="hook").click()
    expect(page.locator(".facts > div").filter(has_text="Name of shades")).to_contain_text("u, v")
    button(page, "Edit").last.click()
    expect(dialog(page).get_by_label("Name of shades")).to_have_value("u\nv")
    expect(dialog(page).get_by_label("Name of hue")).to_have_value("b")
    expect(dialog(page).get_by_text("Meaning of hue.")).to_be_visible()


# ---------------------------------------------------------------------- the tester


def test_tags_are_tested_while_they_are_typed(page: Page, account: Account):
    client = account.client
    client.create_queue("orders")
    topic = client.create_topic("shop")
    topic.subscribe("all", queue="orders")
    topic.subscribe("paid", queue="orders", filter_tags=["paid", "refunded"])
    topic.subscribe("held", queue="orders", filter_tags=["card"])
    topic.subscription("held").pause()
    go(page, "topics/shop")
    page.get_by_role("tab", name="Filter tester").click()

    results = page.get_by_role("table", name="Subscriptions tested")
    expect(page.get_by_text("1 of 3 subscriptions would get this message")).to_be_visible()
    field = page.get_by_label("Tags of the message")
    field.press_sequentially("paid, ca")
    expect(page.get_by_text("2 of 3 subscriptions would get this message")).to_be_visible()
    expect(row(results, "every message matches")).to_contain_text("yes, at once")
    expect(results.get_by_role("listitem").filter(has_text="refunded")).to_contain_text("not among the tags")
    expect(row(results, "held")).to_contain_text("no")
    field.press_sequentially("rd")
    expect(row(results, "held")).to_contain_text("later: paused")
    expect(page).to_have_url(re.compile("labels=paid"))
    field.fill("x" * 17)
    expect(page.get_by_role("alert")).to_contain_text("16 characters")
    expect(results).to_have_count(0)
    assert client.topic("shop").attributes().retained == 0, "nothing was published"


def test_a_routing_key_is_tested_and_the_word_that_does_not_fit_is_named(page: Page, account: Account):
    client = account.client
    client.create_queue("orders")
    topic = client.create_topic("repository", filter_type="routing")
    topic.subscribe("docs", queue="orders", binding_keys=["docs.#", "src.*.md", "src.core.*.md"])
    go(page, "topics/repository?view=tester")
    expect(page.get_by_text("Type a routing key to see the subscriptions that match.")).to_be_visible()

    page.get_by_label("Routing key of the message").press_sequentially("src.core.py")

    reasons = page.get_by_role("table", name="Subscriptions tested").get_by_role("listitem")
    expect(page.get_by_text("0 of 1 subscription would get this message")).to_be_visible()
    expect(page.get_by_text("the message would be discarded")).to_be_visible()
    expect(reasons.nth(0)).to_contain_text("word 1, “src”, does not fit")
    expect(reasons.nth(1)).to_contain_text("word 3, “py”, does not fit")
    expect(reasons.nth(2)).to_contain_text("more words would have to follow")

    page.get_by_label("Routing key of the message").fill("src.core.md")
    expect(reasons.nth(1)).to_contain_text("matches")
    button(page, "Publish this").click()
    expect(dialog(page).get_by_label("Routing key")).to_have_value("src.core.md")
    dialog(page).get_by_label("Body").fill("changed")
    submit(page, "Publish")
    expect(dialog(page).get_by_role("status")).to_contain_text("1 subscription gets the message")
    assert [message.body for message in client.queue("orders").receive(wait=0)] == [b"changed"]


def test_many_subscriptions_are_tested_in_pages_with_the_matches_first(page: Page, account: Account):
    account.client.create_queue("orders")
    topic = account.client.create_topic("shop")
    for number in range(30):
        topic.subscribe(f"sub-{number:02}", queue="orders", filter_tags=["paid" if number > 27 else "new"])
    go(page, "topics/shop?view=tester&labels=paid")

    results = page.get_by_role("table", name="Subscriptions tested")
    expect(page.get_by_text("2 of 30 subscriptions would get this message")).to_be_visible()
    expect(results.get_by_role("row")).to_have_count(26)
    expect(results.get_by_role("row").nth(1)).to_contain_text("sub-28")
    button(page, "Next").click()
    expect(results.get_by_role("row")).to_have_count(6)
    page.get_by_label("Matches only").check()
    expect(results.get_by_role("row")).to_have_count(3)
    page.get_by_label("Tags of the message").fill("new")
    expect(page.get_by_text("28 of 30 subscriptions would get this message")).to_be_visible()
    expect(results.get_by_role("row")).to_have_count(26)


# ---------------------------------------------------------------------- publishes


def test_a_message_is_published_with_tags_headers_and_a_dedup_id(page: Page, account: Account):
    client = account.client
    client.create_queue("orders")
    client.create_topic("shop").subscribe("billing", queue="orders", filter_tags=["paid"])
    go(page, "topics/shop")
    button(page, "Publish message").click()
    dialog(page).get_by_label("Body").fill('{"order": 1}')
    dialog(page).get_by_label("Tags").fill("paid, card")
    dialog(page).get_by_label("Headers").fill("trace 7")
    dialog(page).get_by_label("Dedup id").fill("order-1")
    submit(page, "Publish")
    expect(dialog(page).get_by_text("Line 1 is not name: value.")).to_be_visible()
    dialog(page).get_by_label("Headers").fill("trace: 7\nfrom: here: there")
    submit(page, "Publish")
    expect(dialog(page).get_by_role("status")).to_contain_text("1 subscription gets the message")
    (message,) = client.queue("orders").receive(wait=0)
    assert (message.body, message.headers) == (b'{"order": 1}', {"trace": "7", "from": "here: there"})
    assert message.copy_of is not None
    assert message.copy_of.tags == ["paid", "card"]

    submit(page, "Publish")
    expect(dialog(page).get_by_role("status")).to_contain_text("had been published before")
    dialog(page).get_by_label("Dedup id").fill("")
    dialog(page).get_by_label("Tags").fill("new")
    submit(page, "Publish")
    expect(dialog(page).get_by_role("status")).to_contain_text("the message was discarded")
    dialog(page).get_by_label("Tags").fill("a" * 17)
    submit(page, "Publish")
    expect(dialog(page).locator(".fault")).to_be_visible()
    dialog(page).get_by_label("Tags").fill("paid")
    submit(page, "Publish")
    button(dialog(page), "Who has had it").click()

    report = page.get_by_role("table", name="Message lookup")
    expect(row(report, "billing")).to_contain_text("delivered")
    page.get_by_label("Message id").fill("17")
    button(page, "Look up").click()
    expect(page.get_by_text("An id is Msg- and 16 hex digits.")).to_be_visible()


# ---------------------------------------------------------------------- rights, keyboard, phone


def test_a_key_that_only_reads_is_offered_no_change(visits: Visits, account: Account):
    account.client.create_queue("orders")
    topic = account.client.create_topic("shop")
    topic.subscribe("billing", queue="orders")
    topic.subscription("billing").pause()
    published = topic.publish(b"x")
    page = visits.sign_in(account.make_key("read"), "topics")
    expect(page.get_by_role("link", name="shop")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Create|Edit|Delete"))).to_have_count(0)

    page.get_by_role("link", name="shop").click()
    page.get_by_role("button", name="billing").click()
    expect(row(page.get_by_role("table", name="Messages in delivery"), published.id)).to_be_visible()
    changes = re.compile("^(Publish|Edit|Delete|Subscribe$|Pause|Resume|Retry|Drop|Unsubscribe|Rotate)")
    expect(page.get_by_role("button", name=changes)).to_have_count(0)
    page.get_by_role("tab", name="Filter tester").click()
    expect(page.get_by_text("1 of 1 subscription would get this message")).to_be_visible()
    expect(page.get_by_role("button", name=changes)).to_have_count(0)


def test_the_keyboard_alone_reaches_the_tester_and_a_dialog(page: Page, account: Account):
    account.client.create_queue("orders")
    account.client.create_topic("shop").subscribe("billing", queue="orders")
    page.get_by_role("link", name="shop").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    page.get_by_role("tab", name="Subscriptions").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Filter tester")).to_be_focused()
    # The tab has the focus before its panel is there.
    expect(page.get_by_label("Tags of the message")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Tags of the message")).to_be_focused()
    page.keyboard.type("paid")
    expect(page.get_by_text("1 of 1 subscription would get this message")).to_be_visible()

    button(page, "Publish message").focus()
    page.keyboard.press("Enter")
    expect(dialog(page)).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    expect(button(page, "Publish message")).to_be_focused()


def test_a_phone_shows_the_pages_in_chinese_without_a_sideways_scroll(visits: Visits, account: Account):
    account.client.create_queue("orders")
    topic = account.client.create_topic("shop")
    topic.subscribe("billing", queue="orders", filter_tags=["paid", "refunded"])
    topic.subscribe("hook", url=f"{NOWHERE}/{'long-path-' * 12}")
    topic.publish(b"x", tags=["paid"])
    page = visits.sign_in(account.key, "topics", locale="zh-CN", viewport={"width": 360, "height": 740})
    for path, text in (
        ("topics", "主题"),
        ("topics/shop?subscription=hook", "投递中的消息"),
        ("topics/shop?view=tester&labels=paid", "2 个订阅中有 2 个会收到此消息"),
        ("topics/shop?view=report", "消息追踪"),
    ):
        go(page, path)
        expect(page.locator("main").get_by_text(text).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
