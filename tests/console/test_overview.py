"""The overview: first steps, live figures, findings in words, plots with their text alternatives, rights."""

import re
import signal

from playwright.sync_api import Browser, Locator, Page, expect

from support.console.console_rig import Account, ConsoleBroker, Visits
from support.console.console_rig import visits as visiting


def overview(visits: Visits, account: Account, query: str = "", **options: object) -> Page:
    page = visits.sign_in(account.key, query, **options)
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Overview|概览"))
    return page


def largest(page: Page) -> Locator:
    return page.get_by_role("table", name="Largest queues")


def test_an_account_without_queues_learns_the_next_step_and_sees_its_message_at_once(visits: Visits, account: Account):
    page = overview(visits, account)
    expect(page.get_by_role("heading", name="No queues yet")).to_be_visible()
    expect(page.get_by_text("cmq queue create orders")).to_be_visible()
    expect(page.get_by_role("link", name="Create a queue")).to_have_attribute("href", "/console/queues?create=1")

    account.client.create_queue("orders").send_batch([b"a", b"b", b"c"])

    row = largest(page).get_by_role("row", name=re.compile("orders"))
    expect(row.get_by_role("cell").nth(1)).to_have_text("3")
    expect(page.locator(".figure", has_text="Backlog").locator(".figure-value")).to_have_text("3")
    expect(page.get_by_role("heading", name="No queues yet")).not_to_be_attached()


def test_the_code_of_the_first_steps_runs(visits: Visits, account: Account):
    page = overview(visits, account)
    code = page.locator(".empty-code pre").nth(1).inner_text()
    address = f"{account.broker.server.ready['host']}:{account.broker.server.ready['port']}"
    code = re.sub(r"SECRET_ID:SECRET_KEY@[^\"]*", f"{account.key.secret_id}:{account.key.secret_key}@{address}", code)

    exec(code, {})

    assert account.client.queue("orders").attributes().active == 1
    expect(largest(page).get_by_role("link", name="orders")).to_be_visible()


def test_findings_are_sentences_with_links(visits: Visits, account: Account):
    account.seed()
    page = overview(visits, account)

    finding = page.locator(".finding", has_text="orders-dead")
    expect(finding).to_contain_text("holds 4 dead letters; the oldest was sent")
    expect(page.get_by_role("status").filter(has_text="finding")).to_have_text(re.compile("finding"))
    finding.get_by_role("link", name="orders-dead").click()
    expect(page).to_have_url(re.compile("/console/dead-letters\\?queue=orders-dead$"))


def test_a_subscription_that_fails_is_found_with_its_url_and_error(visits: Visits, account: Account):
    topic = account.client.create_topic("sales")
    # The broker refuses to post to its own machine, so every delivery fails with this reason.
    topic.subscribe("hook", url="http://127.0.0.1:9/in")
    topic.publish(b"sale")

    page = overview(visits, account)

    finding = page.locator(".finding", has_text="sales → hook")
    expect(finding).to_contain_text("http://127.0.0.1:9/in")
    expect(finding).to_contain_text("loopback")
    expect(finding.get_by_role("link")).to_have_attribute("href", "/console/topics/sales")


def test_the_end_of_the_disk_is_a_day_and_an_hour(visits: Visits, account: Account):
    account.client.create_queue("orders")

    def words(page: Page, hours: float) -> str:
        """The sentence at Monday, 23 November 2026, 9:00, for a disk that lasts for these hours."""
        return page.evaluate(
            """async (hours) => {
                const main = document.querySelector('script[type=module]').src;
                const { whenText } = await import(main.replace('app/main.js', 'pages/overview-findings.js'));
                const now = new Date(2026, 10, 23, 9, 0).getTime() / 1000;
                return whenText(now + hours * 3600, now);
            }""",
            hours,
        )

    page = overview(visits, account)
    said = [words(page, hours) for hours in (5.2, 24, 77, 24 * 30)]
    assert said == ["today about 14:00", "tomorrow about 09:00", "on Thursday about 14:00", "about December 23"]
    page = overview(visits, account, locale="zh-CN")
    assert [words(page, hours) for hours in (77, 24 * 30)] == ["星期四 14:00 左右", "12月23日前后"]


def test_nothing_wrong_is_said_too(visits: Visits, account: Account):
    account.client.create_queue("orders")
    page = overview(visits, account)

    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()


def test_the_largest_queues_lead_to_their_pages(visits: Visits, account: Account):
    account.seed()
    page = overview(visits, account)

    largest(page).get_by_role("link", name="orders", exact=True).click()

    expect(page).to_have_url(re.compile("/console/queues/orders$"))


def test_each_plot_has_a_sentence_and_a_table(visits: Visits, account: Account):
    account.seed()
    page = overview(visits, account)
    plot = page.locator("figure", has=page.get_by_role("heading", name="Messages by state"))
    # Behind the first reading: a reading has counts, and the plot's sentence has them.
    expect(plot.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"Active: \d+ now, from \d+ to \d+\."))
    expect(plot.locator("canvas")).to_be_attached()

    plot.get_by_text("As a table").click()

    newest = plot.get_by_role("table").get_by_role("row").nth(1)
    expect(newest.get_by_role("cell").first).to_have_text(re.compile(r"\d+"))
    for other in page.locator("figure").all():
        expect(other.get_by_role("img")).to_have_attribute("aria-label", re.compile(".+"))


def test_the_range_is_kept_in_the_address_and_for_the_next_visit(visits: Visits, account: Account):
    account.seed()
    page = overview(visits, account)
    expect(page.get_by_role("button", name="15 min", exact=True)).to_have_attribute("aria-pressed", "true")

    with page.expect_response(re.compile("/console/history\\?range=6h")) as answered:
        page.get_by_role("button", name="6 h").click()

    assert answered.value.status == 200
    expect(page.get_by_role("button", name="6 h")).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile("\\?range=6h$"))
    page.goto(account.broker.console)
    expect(page.get_by_role("button", name="6 h")).to_have_attribute("aria-pressed", "true")


def test_the_overview_speaks_chinese(visits: Visits, account: Account):
    account.seed()
    page = overview(visits, account, locale="zh-CN")

    expect(page.get_by_role("heading", name="需要关注")).to_be_visible()
    expect(page.locator(".finding", has_text="orders-dead")).to_contain_text("有 4 条死信")
    expect(page.get_by_role("heading", name="各状态消息数")).to_be_visible()


def test_an_account_sees_no_figures_of_the_server_and_admin_does(visits: Visits, account: Account):
    account.seed()
    page = overview(visits, account)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="Free disk space")).not_to_be_attached()

    admin = visits.sign_in(account.broker.admin)
    expect(admin.get_by_role("heading", name="Free disk space")).to_be_visible()
    # The broker lends its gateway a key that reads the figures also while no page is open.
    expect(admin.get_by_text("cmqd 0.")).to_be_visible()
    expect(admin.get_by_text("are kept from now on")).not_to_be_attached()
    expect(admin.locator(".figure", has_text="Free disk space").locator(".figure-value")).to_have_text(
        re.compile(r"[\d.]+ .iB")
    )
    # A queue of another account has no page for this key.
    row = largest(admin).get_by_role("row", name=re.compile(account.name)).first
    expect(row).to_be_visible()
    expect(row.get_by_role("link")).not_to_be_attached()


def test_a_key_without_the_role_learns_which_role_it_needs(visits: Visits, account: Account):
    page = visits.sign_in(account.make_key("send"))

    expect(page.get_by_role("heading", name="Your key cannot read the figures")).to_be_visible()
    expect(page.get_by_text("a key with the role read and the names *")).to_be_visible()


def test_a_page_follows_the_roles_of_its_key(visits: Visits, account: Account):
    account.seed()
    key = account.make_key("read")
    page = visits.sign_in(key)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()

    account.broker.client.accounts.set_key_roles(key.secret_id, roles=["send"], account=account.name)

    expect(page.get_by_role("heading", name="Your key cannot read the figures")).to_be_visible()


def test_a_broker_that_does_not_answer_is_said_and_its_return_too(browser: Browser, own_broker: ConsoleBroker):
    with visiting(browser, own_broker) as visits:
        visits.complaints.allow("status 50[0-9]|ERR_|status 429")
        own_broker.client.create_queue("orders")
        page = visits.sign_in(own_broker.admin)
        expect(page.get_by_text("Live", exact=True)).to_be_visible()

        own_broker.server.process.send_signal(signal.SIGSTOP)
        try:
            expect(page.get_by_role("alert").filter(has_text="The broker does not answer")).to_be_visible()
            expect(page.get_by_text("Waiting for figures")).to_be_visible()
        finally:
            own_broker.server.process.send_signal(signal.SIGCONT)

        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        expect(page.get_by_role("alert").filter(has_text="The broker does not answer")).not_to_be_attached()


def test_a_narrow_window_needs_no_sideways_scroll(visits: Visits, account: Account):
    account.seed()
    page = overview(visits, account, viewport={"width": 360, "height": 700})
    expect(page.locator("figure canvas").first).to_be_attached()
    expect(page.locator(".finding").first).to_be_visible()

    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
