"""The page of a queue: the picture, browsing, bodies, test messages, receives by hand, purge and delete."""

import base64
import json
import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from cmqd_client.sync import Queue
from support.console.chromium import AXE_FILE
from support.console.console_rig import Account, Visits


@pytest.fixture
def queue(account: Account) -> Queue:
    """A queue with a dead-letter queue and a rewind window."""
    account.client.create_queue("orders-dead")
    return account.client.create_queue(
        "orders", dead_letter_queue="orders-dead", dead_letter_max_receives=9, rewind=3600, max_message_bytes=1 << 20
    )


def show(page: Page, name: str = "orders") -> None:
    page.goto(f"queues/{name}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)
    expect(page.locator(".life")).to_be_visible()


def counted(page: Page, state: str) -> Locator:
    """The count of a state in the picture."""
    return page.locator(f".life-picture.wide .life-box.{state} .life-count")


def rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Messages").locator(".open-message")


def open_message(page: Page, index: int = 0) -> None:
    rows(page).nth(index).click()
    expect(page.locator(".body-rows").first).to_be_visible()


# ---------------------------------------------------------------- states


def test_the_picture_shows_the_counts_of_all_states(page: Page, account: Account, queue: Queue):
    queue.send_batch([b"1", b"2", b"3", b"4", b"5"])
    queue.send(b"later", delay=3000)
    first, second, _ = queue.receive(3, visibility_timeout=600)
    first.delete()
    second.reject("broken")

    show(page)

    for state, messages in {"active": 2, "in-flight": 1, "delayed": 1, "rewindable": 1, "dead": 1}.items():
        expect(counted(page, state)).to_have_text(str(messages))
    words = page.locator(".life figcaption")
    expect(words).to_contain_text("Delayed 1, Active 2, In flight 1, Rewindable 1, Dead letters 1")
    expect(words).to_contain_text("orders-dead")


def test_counts_and_a_short_list_follow_without_a_load(page: Page, queue: Queue):
    show(page)
    expect(counted(page, "active")).to_have_text("0")

    queue.send(b"new")

    expect(counted(page, "active")).to_have_text("1")
    expect(page.get_by_role("table", name="Messages").locator(".excerpt")).to_have_text("new")


def test_messages_are_browsed_by_state(page: Page, queue: Queue):
    queue.send_batch([b"deleted", b"held", b"waiting"])
    queue.send(b"later", delay=3000)
    queue.receive(1)[0].delete()
    queue.receive(1, visibility_timeout=600)
    show(page)
    expect(rows(page)).to_have_count(3)
    states = page.get_by_role("group", name="State of the messages")

    for state, body in {"Active": "waiting", "In flight": "held", "Delayed": "later", "Rewindable": "deleted"}.items():
        states.get_by_role("button", name=state).click()
        expect(rows(page)).to_have_count(1)
        expect(page.get_by_role("table", name="Messages").locator(".excerpt")).to_have_text(body)
    expect(page).to_have_url(re.compile(r"\?state=rewindable$"))
    page.reload()
    expect(states.get_by_role("button", name="Rewindable")).to_have_attribute("aria-pressed", "true")
    expect(rows(page)).to_have_count(1)


def test_a_click_on_a_state_of_the_picture_browses_the_state(page: Page, queue: Queue):
    queue.send(b"later", delay=3000)
    queue.send(b"now")
    show(page)
    expect(rows(page)).to_have_count(2)

    page.locator(".life-picture.wide .life-box.delayed").click()

    expect(rows(page)).to_have_count(1)
    page.locator(".life-picture.wide .life-box.dead").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("orders-dead")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()


def test_pages_follow_one_another(page: Page, queue: Queue):
    queue.send_batch([b"%d" % number for number in range(45)])
    show(page)
    pager = page.get_by_role("navigation", name="Pages of the list")
    excerpts = page.get_by_role("table", name="Messages").locator(".excerpt")
    expect(excerpts.first).to_have_text("0")

    pager.get_by_role("button", name="Next").click()
    expect(excerpts.first).to_have_text("20")
    pager.get_by_role("button", name="Next").click()
    expect(excerpts).to_have_text(["40", "41", "42", "43", "44"])
    expect(pager.get_by_role("button", name="Next")).to_be_disabled()
    pager.get_by_role("button", name="Previous").click()
    expect(excerpts.first).to_have_text("20")
    pager.get_by_role("button", name="First page").click()
    expect(excerpts.first).to_have_text("0")


def test_an_empty_queue_teaches_the_first_send(page: Page, queue: Queue):
    show(page)

    expect(page.get_by_text("cmq send orders 'hello'")).to_be_visible()
    expect(page.get_by_text("from cmqd_client import ConsumedMessage, connect")).to_be_visible()
    expect(page.get_by_text("cmq receive orders --wait 20s --delete")).to_be_visible()


def test_a_missing_queue_is_named(page: Page):
    page.goto("queues/no-such-queue")

    expect(page.get_by_text("There is no queue no-such-queue")).to_be_visible()
    expect(page.get_by_role("link", name="All queues")).to_be_visible()


# ---------------------------------------------------------------- bodies


def test_a_message_shows_headers_times_and_its_exact_json(page: Page, queue: Queue):
    sent = queue.send(b'{"id":12345678901234567890,"name":"\\u8ba2"}', headers={"trace": "abc-1"})
    show(page)
    open_message(page)

    detail = page.locator("tr.detail")
    expect(detail.locator(".body-rows")).to_contain_text('"id": 12345678901234567890,')
    expect(detail.locator(".body-rows")).to_contain_text('"name": "订"')
    expect(detail.locator(".headers")).to_contain_text("trace")
    expect(detail.locator(".headers")).to_contain_text("abc-1")
    expect(detail.locator(".copy-value").first).to_contain_text(str(sent.id))
    detail.get_by_role("button", name="Text", exact=True).click()
    expect(detail.locator(".body-rows")).to_have_text('{"id":12345678901234567890,"name":"\\u8ba2"}')
    detail.get_by_role("button", name="Hex").click()
    expect(detail.locator(".body-row").first).to_contain_text("00000000  7b 22 69 64 22 3a 31 32  33")


def test_a_body_is_text_and_never_a_part_of_the_page(page: Page, queue: Queue):
    queue.send(b'<img src=x onerror="document.title=1"><script>document.title=2</script>', headers={"<b>": "<i>x</i>"})
    show(page)
    open_message(page)

    expect(page.locator(".body-rows")).to_contain_text("<img src=x onerror=")
    expect(page.locator("main img, main script, main .headers b, main .headers i")).to_have_count(0)
    expect(page).to_have_title(re.compile("orders"))


def test_characters_that_hide_are_shown_as_escapes(page: Page, queue: Queue):
    queue.send("a\u202eb\u200bc\u2066d\ufeff\u200ce".encode(), headers={"n\u202e": "v\u200b"})
    show(page)
    expect(page.locator(".excerpt").first).to_contain_text(r"a\u202eb\u200bc\u2066d")
    open_message(page)

    detail = page.locator("tr.detail")
    expect(detail.locator(".body-rows")).to_have_text("a\\u202eb\\u200bc\\u2066d\\ufeff\u200ce")
    expect(detail.locator(".headers")).to_contain_text(r"n\u202e")
    expect(detail.locator(".headers")).to_contain_text(r"v\u200b")


def test_bytes_are_shown_in_hex(page: Page, queue: Queue):
    queue.send(b"\x00\xffbinary")
    show(page)
    open_message(page)

    expect(page.locator(".body-row").first).to_contain_text("00000000  00 ff 62 69 6e 61 72 79")
    expect(page.locator(".body-characters")).to_have_text("..binary")


def test_a_body_of_1_mib_is_shown_in_pieces_and_searched_whole(page: Page, queue: Queue):
    lines = "\n".join(f"line {number}" for number in range(80_000))
    queue.send(lines.encode())
    show(page)
    open_message(page)

    body = page.locator(".body-view")
    expect(body.locator(".body-row")).to_have_count(100)
    expect(body.locator(".body-pieces")).to_contain_text(re.compile("Rows 1.100 of 80,000"))
    body.get_by_role("button", name="Last").click()
    expect(body.locator(".body-row").last).to_have_text("line 79999")
    body.get_by_label("Find in body").fill("LINE 4321")
    expect(body.locator(".body-search")).to_contain_text("1 of 11")
    expect(body.locator("mark.current")).to_have_text("line 4321")
    expect(body.locator("mark.current")).to_be_in_viewport()
    body.get_by_label("Find in body").press("Shift+Enter")
    expect(body.locator(".body-search")).to_contain_text("11 of 11")
    expect(body.locator(".body-row", has=page.locator("mark.current"))).to_have_text("line 43219")


def test_a_list_in_json_folds(page: Page, queue: Queue):
    queue.send(b'{"items":[1,2,3],"last":true}')
    show(page)
    open_message(page)
    body = page.locator(".body-rows")
    expect(body.locator(".body-row")).to_have_count(8)

    body.get_by_role("button", name="Fold row 2").click()

    expect(body.locator(".body-row")).to_have_count(4)
    expect(body.locator(".body-row").nth(1)).to_contain_text('"items": [ … 3 rows … ],')


def test_a_search_over_the_messages_marks_and_filters(page: Page, queue: Queue):
    queue.send_batch([b'{"customer":"Ada"}', b"no match", b"ada and Ada", base64.b64decode("/0FkYf8=")])
    show(page)
    expect(rows(page)).to_have_count(4)

    page.get_by_label("Find in the bodies below").fill("ada")

    expect(rows(page)).to_have_count(3)
    expect(page.get_by_role("search")).to_contain_text("3 of 4 messages, 4 matches")
    expect(page.get_by_role("table", name="Messages").locator("mark")).to_have_text(["Ada", "ada", "Ada", "Ada"])
    open_message(page)
    expect(page.locator(".body-rows mark.current")).to_have_text("Ada")
    page.get_by_label("Find in the bodies below").fill("nowhere")
    expect(page.get_by_role("search")).to_contain_text("No body below has this text")


# ---------------------------------------------------------------- test messages


def send_dialog(page: Page) -> Locator:
    page.get_by_role("button", name="Send test message").click()
    dialog = page.get_by_role("dialog")
    # The page reads the limits before the dialog opens: a key pressed until then would not reach the dialog.
    expect(dialog).to_be_visible()
    return dialog


def submit(dialog: Locator) -> None:
    dialog.get_by_role("button", name="Send", exact=True).click()


def test_a_test_message_has_body_headers_delay_and_dedup_id(page: Page, queue: Queue):
    show(page)

    for _ in range(2):
        dialog = send_dialog(page)
        dialog.get_by_role("textbox", name="Body").fill('{"订单": 1}')
        dialog.get_by_label("Headers").fill("trace: abc: 1\n\nempty:\n")
        dialog.get_by_label("Delay").fill("50min")
        dialog.get_by_label("Dedup id").fill("order-1")
        submit(dialog)
        expect(dialog).to_have_count(0)
    expect(page.get_by_text(re.compile("Sent: Msg-")).first).to_be_visible()

    expect(rows(page)).to_have_count(1)
    (message,) = queue.peek()
    assert message.body == '{"订单": 1}'.encode()
    assert message.headers == {"trace": "abc: 1", "empty": ""}
    assert message.state == "delayed"


def test_a_typed_message_survives_escape_with_a_question(page: Page, queue: Queue):
    show(page)
    dialog = send_dialog(page)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)

    dialog = send_dialog(page)
    dialog.get_by_role("textbox", name="Body").fill("a long message")
    question = page.get_by_role("dialog", name="Discard the message?")
    for _ in range(2):
        page.keyboard.press("Escape")
        expect(question).to_be_visible()
        question.get_by_role("button", name="Cancel").click()
        expect(question).to_have_count(0)
        expect(dialog.get_by_role("textbox", name="Body")).to_have_value("a long message")
    page.keyboard.press("Escape")
    # A key right behind the answer comes before the event `close` of the question.
    question.get_by_role("button", name="Cancel").evaluate(
        """(button) => {
          button.click();
          const escape = new KeyboardEvent('keydown', { key: 'Escape', bubbles: true, cancelable: true });
          document.querySelector('dialog[open] textarea').dispatchEvent(escape);
        }"""
    )
    question.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert list(queue.peek()) == []


def test_two_clicks_open_one_dialog(page: Page, queue: Queue):
    show(page)

    page.get_by_role("button", name="Send test message").evaluate("(button) => { button.click(); button.click(); }")

    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    send_dialog(page)
    expect(page.get_by_role("dialog")).to_have_count(1)


def test_a_file_is_sent_with_its_exact_bytes(page: Page, queue: Queue):
    data = b"\xef\xbb\xbf\xff\x00" + bytes(range(256))
    show(page)
    dialog = send_dialog(page)
    dialog.get_by_role("button", name="From a file").click()
    submit(dialog)
    expect(dialog.get_by_text("Choose a file.")).to_be_visible()

    dialog.get_by_label("File").set_input_files(
        {"name": "x.bin", "mimeType": "application/octet-stream", "buffer": data}
    )
    expect(dialog.get_by_text("261 B of at most 1 MiB")).to_be_visible()
    submit(dialog)

    expect(rows(page)).to_have_count(1)
    assert [message.body for message in queue.peek()] == [data]


def test_faults_of_a_test_message_stand_beside_their_fields(page: Page, account: Account):
    queue = account.client.create_queue("orders", max_message_bytes=1024)
    show(page)
    dialog = send_dialog(page)
    dialog.get_by_role("textbox", name="Body").fill("订" * 400)
    dialog.get_by_label("Headers").fill("good: 1\nbad")
    dialog.get_by_label("Delay").fill("soon")
    submit(dialog)

    expect(dialog.get_by_text("The body has 1.2 KiB; this queue takes at most 1 KiB.")).to_be_visible()
    expect(dialog.get_by_text("Line 2 is not name: value.")).to_be_visible()
    expect(dialog.get_by_text("Must be a duration, such as 30s")).to_be_visible()
    expect(dialog.get_by_role("textbox", name="Body")).to_be_focused()
    dialog.get_by_role("textbox", name="Body").fill("x")
    dialog.get_by_label("Headers").fill("a: 1\na: 2")
    dialog.get_by_label("Delay").fill("2h")
    submit(dialog)
    expect(dialog.get_by_text("Line 2 repeats the header a.")).to_be_visible()
    dialog.get_by_label("Headers").fill("")
    submit(dialog)
    # The broker's own limit, in the words of the broker.
    expect(dialog.locator(".fault")).to_contain_text("delay")
    assert list(queue.peek()) == []


def test_a_repeat_after_a_lost_answer_stores_the_message_once(page: Page, queue: Queue):
    show(page)
    lost: list[str] = []

    def lose_first(route: Route) -> None:
        if route.request.method == "POST" and not lost:
            lost.append(route.request.headers["idempotency-key"])
            # The message is stored; its answer does not arrive.
            queue.send(b"once", dedup_id=lost[0])
            route.abort()
        else:
            route.fallback()

    page.route("**/messages", lose_first)
    dialog = send_dialog(page)
    dialog.get_by_role("textbox", name="Body").fill("once")
    submit(dialog)
    expect(dialog.get_by_role("alert")).to_be_visible()
    submit(dialog)

    expect(dialog).to_have_count(0)
    expect(rows(page)).to_have_count(1)
    assert len(lost) == 1
    assert [message.body for message in queue.peek()] == [b"once"]


def test_a_half_message_waits_for_its_decision(page: Page, account: Account):
    account.client.create_queue("orders", transactional=True)
    show(page)
    dialog = send_dialog(page)
    dialog.get_by_role("textbox", name="Body").fill("half")
    dialog.get_by_label("Send as half message").check()
    expect(dialog.get_by_label("Delay")).to_have_count(0)
    dialog.get_by_label("First check").fill("10min")
    submit(dialog)

    expect(counted(page, "half")).to_have_text("1")
    page.get_by_role("group", name="State of the messages").get_by_role("button", name="Half").click()
    expect(rows(page)).to_have_count(1)
    expect(page.get_by_role("link", name="Commit or roll back on the page of half messages")).to_be_visible()


# ---------------------------------------------------------------- receives by hand


def receive(page: Page, most: int = 1) -> None:
    page.get_by_role("button", name="Receive by hand").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Most messages").fill(str(most))
    dialog.get_by_label("Visibility timeout").fill("10min")
    dialog.get_by_role("button", name="Receive", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(held(page)).to_have_count(most)


def held(page: Page) -> Locator:
    return page.get_by_role("table", name="Received by hand").locator("tbody tr:not(.detail)")


def test_a_message_is_received_and_deleted_by_hand(page: Page, queue: Queue):
    queue.send(b'{"order": 1}', headers={"trace": "abc"})
    show(page)
    receive(page)

    expect(held(page)).to_contain_text(re.compile(r"(10 min|9 min \d+ s) left"))
    detail = page.get_by_role("table", name="Received by hand").locator("tr.detail")
    expect(detail).to_contain_text("Receipt handle")
    expect(detail.locator(".body-rows")).to_contain_text('"order": 1')
    expect(counted(page, "in-flight")).to_have_text("1")
    held(page).get_by_role("button", name="Delete").click()

    expect(page.get_by_role("table", name="Received by hand")).to_have_count(0)
    expect(page.get_by_text("Message deleted")).to_be_visible()
    expect(counted(page, "rewindable")).to_have_text("1")
    assert list(queue.peek()) == []


def test_messages_are_handed_back_extended_and_dead_lettered(page: Page, account: Account, queue: Queue):
    queue.send_batch([b"back", b"longer", b"broken"])
    show(page)
    receive(page, 3)

    held(page).nth(0).get_by_role("button", name="Hand back").click()
    expect(held(page)).to_have_count(2)
    held(page).nth(0).get_by_role("button", name="Extend").click()
    page.get_by_role("dialog").get_by_label("Hidden from now on for").fill("5h")
    page.get_by_role("dialog").get_by_role("button", name="Extend").click()
    expect(held(page).nth(0)).to_contain_text(re.compile(r"(5 h|4 h 59 min) left"))
    held(page).nth(1).get_by_role("button", name="Dead-letter").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("no such customer")
    page.get_by_role("dialog").get_by_role("button", name="Dead-letter").click()
    expect(held(page)).to_have_count(1)

    assert {message.body: message.state for message in queue.peek()} == {b"back": "active", b"longer": "in_flight"}
    show(page, "orders-dead")
    open_message(page)
    detail = page.locator("tr.detail")
    expect(detail).to_contain_text("rejected by its consumer")
    expect(detail).to_contain_text("no such customer")
    expect(detail.get_by_role("link", name=re.compile("orders"))).to_be_visible()


def test_a_handle_that_became_void_is_explained(page: Page, queue: Queue):
    queue.send(b"x")
    show(page)
    receive(page)
    queue.clear()

    held(page).get_by_role("button", name="Delete").click()

    expect(page.get_by_role("alert")).to_contain_text("receipt handle")
    expect(held(page)).to_have_count(1)


def test_a_lease_that_ended_is_said(page: Page, queue: Queue):
    queue.send(b"x")
    page.clock.install()
    show(page)
    receive(page)

    page.clock.fast_forward(601_000)

    expect(held(page)).to_contain_text("over: active again")
    expect(held(page).get_by_role("button", name="Delete")).to_have_count(0)
    held(page).get_by_role("button", name="Remove from list").click()
    expect(page.get_by_role("table", name="Received by hand")).to_have_count(0)


def test_an_empty_receive_says_so_and_a_cancelled_wait_takes_no_message(page: Page, queue: Queue):
    show(page)
    page.get_by_role("button", name="Receive by hand").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Receive", exact=True).click()
    expect(dialog.get_by_text("No message came in time.")).to_be_visible()
    dialog.get_by_label("Wait", exact=True).fill("30s")
    dialog.get_by_role("button", name="Receive", exact=True).click()
    expect(dialog.get_by_text("Waiting for a message …")).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)

    queue.send(b"for consumers")

    expect(counted(page, "active")).to_have_text("1")
    expect(page.get_by_role("table", name="Received by hand")).to_have_count(0)


# ---------------------------------------------------------------- edit, rewind, purge, delete, rights


def test_an_edit_shows_the_new_attributes(page: Page, queue: Queue):
    show(page)
    page.get_by_role("button", name="Edit", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Visibility timeout").fill("90s")
    dialog.locator("button[type=submit]").click()
    expect(dialog).to_have_count(0)

    expect(page.locator(".facts > div", has_text="Visibility timeout")).to_contain_text("1 min 30 s")
    assert queue.attributes().visibility_timeout == 90


def test_a_rewind_brings_the_deleted_messages_back(page: Page, queue: Queue):
    queue.send_batch([b"1", b"2"])
    for message in queue.receive(2):
        message.delete()
    show(page)
    expect(counted(page, "rewindable")).to_have_text("2")
    page.get_by_role("button", name="Rewind", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=re.compile("^(Rewind|Bring)")).last.click()
    expect(dialog).to_have_count(0)

    expect(counted(page, "active")).to_have_text("2")
    expect(rows(page)).to_have_count(2)


def test_purge_and_delete_need_the_name(page: Page, queue: Queue, account: Account):
    queue.send_batch([b"1", b"2"])
    show(page)
    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Active 2")
    dialog.get_by_role("textbox").fill("wrong")
    dialog.get_by_role("button", name="Purge").click()
    expect(dialog.locator(".fault")).to_be_visible()
    assert len(queue.peek()) == 2
    dialog.get_by_role("textbox").fill("orders")
    dialog.get_by_role("button", name="Purge").click()
    expect(counted(page, "active")).to_have_text("0")
    assert list(queue.peek()) == []

    page.get_by_role("button", name="Delete queue").click()
    dialog.get_by_role("textbox").fill("orders")
    dialog.get_by_role("button", name="Delete queue").click()
    expect(page).to_have_url(re.compile(r"/console/queues$"))
    assert account.client.queues().names == ["orders-dead"]


def test_a_dead_letter_queue_in_use_is_not_deleted_and_the_reason_is_shown(page: Page, queue: Queue, account: Account):
    show(page, "orders-dead")
    page.get_by_role("button", name="Delete queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("orders-dead")
    dialog.get_by_role("button", name="Delete queue").click()

    expect(dialog.get_by_role("alert")).to_contain_text("orders")


@pytest.mark.parametrize(
    ("roles", "offered"),
    [
        (["read"], []),
        (["read", "send"], ["Send test message"]),
        (["read", "consume"], ["Receive by hand"]),
        (["read", "manage"], ["Edit", "Rewind", "Purge", "Delete queue"]),
    ],
)
def test_only_allowed_actions_are_offered(
    visits: Visits, account: Account, queue: Queue, roles: list[str], offered: list[str]
):
    queue.send(b"x")
    page = visits.sign_in(account.make_key(*roles))
    show(page)
    expect(rows(page)).to_have_count(1)

    assert page.locator(".page-head .actions button").all_inner_texts() == offered


# ---------------------------------------------------------------- screen readers, windows and languages


def expect_accessible(page: Page) -> None:
    """Expect that axe-core finds nothing serious in the page as it is."""
    page.evaluate(AXE_FILE.read_text())
    report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    faults = [
        f"{fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in report["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opened_parts_are_accessible(visits: Visits, account: Account, queue: Queue, scheme: str):
    queue.send(b'{"name": "Ada", "number": 1, "list": [true, null]}', headers={"trace": "1"})
    queue.send(b"\xff\x00" * 2000)
    page = visits.sign_in(account.key, color_scheme=scheme)
    show(page)
    receive(page)
    open_message(page, 0)
    open_message(page, 1)
    page.get_by_label("Find in the bodies below").fill("a")
    expect(page.locator(".body-rows mark").first).to_be_visible()
    expect_accessible(page)

    page.get_by_label("Find in the bodies below").fill("")
    page.get_by_role("group", name="State of the messages").get_by_role("button", name="In flight").click()
    expect(rows(page)).to_have_count(1)
    send_dialog(page).get_by_role("textbox", name="Headers").fill("bad")
    submit(page.get_by_role("dialog"))
    expect(page.get_by_role("dialog").locator(".fault")).to_be_visible()
    expect_accessible(page)


def test_the_page_fits_a_phone(visits: Visits, account: Account, queue: Queue):
    queue.send(json.dumps({"long": "x" * 300}).encode(), headers={"h" * 100: "v" * 100})
    page = visits.sign_in(account.key, "queues/orders", viewport={"width": 360, "height": 740})
    expect(page.locator(".life-picture.upright")).to_be_visible()
    expect(page.locator(".life-picture.wide")).to_be_hidden()
    open_message(page)

    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_speaks_chinese(visits: Visits, account: Account, queue: Queue):
    queue.send(b"x")
    page = visits.sign_in(account.key, locale="zh-CN")
    show(page)

    expect(page.get_by_role("button", name="发送测试消息")).to_be_visible()
    expect(page.locator(".life figcaption")).to_contain_text("可接收 1")
    expect(page.get_by_role("table", name="消息")).to_be_visible()
