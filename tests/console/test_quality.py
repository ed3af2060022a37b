"""Every page: for screen readers (axe-core), with the keyboard alone, on a phone, and its size."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from support.console.chromium import AXE_FILE
from support.console.console_rig import Account, ConsoleBroker, Visits
from support.console.console_rig import visits as visiting
from support.console.pages import PAGES, declared_files, existing_pages, show
from support.eventually import eventually_elsewhere

PHONE: Final = {"width": 390, "height": 844}
NARROW: Final = {"width": 320, "height": 640}
DESKTOP: Final = {"width": 1280, "height": 800}
BUDGET_BYTES: Final = 300_000
SERIOUS: Final = ("serious", "critical")


@pytest.fixture(scope="module")
def seeded(broker: ConsoleBroker) -> Iterator[Account]:
    """Account ``admin``, whose key sees every page, with things in it."""
    account = Account(broker, "admin", broker.admin).seed()
    yield account
    account.client.close()


@pytest.fixture(scope="module")
def views(browser: Browser, broker: ConsoleBroker, seeded: Account) -> Iterator[dict[str, Page]]:
    """Signed-in pages by name of their form: a sign-in for each test would take most of the time."""
    forms: dict[str, dict[str, Any]] = {
        "light": {"viewport": DESKTOP},
        "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
        "phone": {"viewport": PHONE, "has_touch": True, "is_mobile": True},
        "narrow": {"viewport": NARROW, "locale": "zh-CN"},
    }
    with visiting(browser, broker) as visits:
        yield {name: visits.sign_in(seeded.key, "topics", **options) for name, options in forms.items()}


def test_the_list_of_pages_is_complete() -> None:
    assert declared_files() | {"not-found", "topic-routing"} == set(PAGES)


# ---------------------------------------------------------------- screen readers


@pytest.mark.parametrize("form", ["light", "dark", "phone"])
@pytest.mark.parametrize("name", existing_pages())
def test_axe_finds_nothing_serious(name: str, form: str, views: dict[str, Page], visits: Visits) -> None:
    page = views[form]
    show(visits, page, PAGES[name])

    # Evaluated by the debugger: the policy of the page would refuse a script.
    page.evaluate(AXE_FILE.read_text())
    report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")

    faults = [
        f"{fault['impact']} {fault['id']}: {fault['help']}\n    "
        + "\n    ".join(
            f"{node['target']} {node['html'][:160]} {node['failureSummary'][:300]}" for node in fault["nodes"][:4]
        )
        for fault in report["violations"]
        if fault["impact"] in SERIOUS
    ]
    assert not faults, "\n".join(faults)
    assert report["testEngine"]["name"] == "axe-core"


def test_axe_finds_nothing_serious_at_the_sign_in(visits: Visits) -> None:
    page = visits.stranger()
    show(visits, page, "")

    page.evaluate(AXE_FILE.read_text())
    report = page.evaluate("axe.run()")

    assert [fault for fault in report["violations"] if fault["impact"] in SERIOUS] == []


def test_axe_finds_a_fault_that_is_there(views: dict[str, Page], visits: Visits) -> None:
    page = views["light"]
    show(visits, page, "topics")
    page.evaluate("document.querySelector('h1').append(document.createElement('input'))")
    page.evaluate(AXE_FILE.read_text())

    report = page.evaluate("axe.run()")

    assert any(fault["impact"] in SERIOUS for fault in report["violations"])


# ---------------------------------------------------------------- the keyboard

CONTROLS = """() => {
  const candidates = document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]');
  const reachable = [];
  for (const element of candidates) {
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    const isShown = element.checkVisibility({ visibilityProperty: true }) && box.width > 0 && box.height > 0;
    // Of the radio buttons and tabs of a group, the tab key reaches one; arrow keys reach the others.
    const isOfGroup = element.type === 'radio' || element.getAttribute('role') === 'tab';
    if (isShown && !element.disabled && element.tabIndex >= 0 && !isOfGroup && style.pointerEvents !== 'none') {
      element.dataset.control = String(reachable.length);
      reachable.push(element.outerHTML.slice(0, 120));
    }
  }
  return reachable;
}"""
FOCUSED = """() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const around = element.closest('label') ?? element;
  const ring = [style, getComputedStyle(around)].some(
    (each) => (each.outlineStyle !== 'none' && parseFloat(each.outlineWidth) > 0) || each.boxShadow !== 'none',
  );
  return { control: element.dataset.control ?? null, ring, html: element.outerHTML.slice(0, 120) };
}"""


@pytest.mark.parametrize("name", existing_pages())
def test_the_tab_key_reaches_each_control_and_shows_where_it_is(
    name: str, views: dict[str, Page], visits: Visits
) -> None:
    page = views["light"]
    show(visits, page, PAGES[name])
    controls = page.evaluate(CONTROLS)
    reached: set[str] = set()
    hidden: list[str] = []

    for _ in range(len(controls) + 40):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused["control"] is None:
            continue
        if focused["control"] in reached and len(reached) >= len(controls):
            break
        reached.add(focused["control"])
        if not focused["ring"]:
            hidden.append(focused["html"])

    missed = [html for number, html in enumerate(controls) if str(number) not in reached]
    # A list that was drawn again meanwhile has lost its numbers, but not its controls.
    still_there = page.evaluate("document.querySelectorAll('[data-control]').length")
    assert not missed or still_there < len(controls), missed
    assert not hidden, hidden


def test_a_visit_with_the_keyboard_alone(visits: Visits, account: Account) -> None:
    """Sign in, create a queue, send a message."""
    page = visits.stranger()
    show(visits, page, "queues")
    page.locator("input[name=secret_id]").focus()
    page.keyboard.type(account.key.secret_id)
    page.keyboard.press("Tab")
    page.keyboard.type(account.key.secret_key)
    page.keyboard.press("Enter")
    expect(page.locator("nav").first).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)

    press_until(page, "Tab", lambda: focused_text(page).lower().startswith("create"))
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert page.evaluate("document.activeElement.closest('dialog') !== null"), "a dialog takes the focus"
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert focused_text(page).lower().startswith("create"), "a closed dialog gives the focus back"
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    press_until(page, "Tab", lambda: page.evaluate("document.activeElement.name") == "queue")
    page.keyboard.type("typed")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name="typed", level=1)).to_be_visible()
    press_until(page, "Tab", lambda: focused_text(page).startswith("Send"))
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    press_until(page, "Tab", lambda: page.evaluate("document.activeElement.tagName") == "TEXTAREA")
    page.keyboard.type("without a mouse")
    press_until(page, "Tab", lambda: page.evaluate("document.activeElement.type") == "submit")
    page.keyboard.press("Enter")
    queue = account.client.queue("typed")
    eventually_elsewhere(lambda: queue.peek().messages)
    assert [message.body for message in queue.peek().messages] == [b"without a mouse"]


def focused_text(page: Page) -> str:
    return str(page.evaluate("document.activeElement.innerText ?? ''")).strip()


def press_until(page: Page, key: str, is_there: Any) -> None:
    """Press a key until a condition holds, at most 200 times."""
    for _ in range(200):
        if is_there():
            return
        page.keyboard.press(key)
    raise AssertionError(f"not reached by {key}; the focus is at {page.evaluate(FOCUSED)}")


# ---------------------------------------------------------------- a phone


@pytest.mark.parametrize("form", ["phone", "narrow"])
@pytest.mark.parametrize("name", existing_pages())
def test_a_narrow_window_needs_no_scrolling_sideways(
    name: str, form: str, views: dict[str, Page], visits: Visits
) -> None:
    page = views[form]
    show(visits, page, PAGES[name])

    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    wide = page.evaluate(
        """() => [...document.querySelectorAll('body *')].filter((each) => {
          const box = each.getBoundingClientRect();
          const scrolls = each.parentElement.closest('.table-wrap, .scroll, pre, [class*=scroll]');
          return box.right > innerWidth + 1 && box.width > 0 && !scrolls && each.checkVisibility();
        }).slice(0, 5).map((each) => each.outerHTML.slice(0, 140))"""
    )
    assert widths[0] <= widths[1], wide


def test_the_menu_of_a_phone_opens_and_closes(views: dict[str, Page], visits: Visits) -> None:
    page = views["phone"]
    show(visits, page, "topics")
    menu = page.locator("#menu-button")
    menu.tap()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.get_by_role("link", name="Queues").tap()

    expect(page.locator("h1")).to_have_text("Queues")
    expect(menu).to_have_attribute("aria-expanded", "false")


# ---------------------------------------------------------------- policy, size, restarts


def test_the_browser_enforces_the_policy(page: Page, visits: Visits) -> None:
    """Each of these would be a way in for the body of a message."""
    visits.complaints.allow(r"Refused to|Content Security Policy|violates|Trusted|request to another host")
    breaches = page.evaluate(
        """async () => {
          const breaches = [];
          addEventListener('securitypolicyviolation', (event) => breaches.push(event.effectiveDirective));
          const script = document.createElement('script');
          try { script.textContent = 'window.ran = 1'; document.body.append(script); } catch {}
          try { document.body.innerHTML += '<img src=x onerror="window.ran = 1">'; } catch {}
          document.body.setAttribute('style', 'color: red');
          await fetch('http://127.0.0.1:1/').catch(() => {});
          await new Promise((resolve) => setTimeout(resolve));
          return { breaches, ran: window.ran ?? null };
        }"""
    )

    assert breaches["ran"] is None
    assert {"require-trusted-types-for", "connect-src", "style-src-attr"} <= set(breaches["breaches"])


def test_a_visit_of_the_overview_transfers_less_than_the_budget(visits: Visits, seeded: Account) -> None:
    page = visits.stranger()
    visits.sign_in_page(page, seeded.key)
    show(visits, page, "")
    expect(page.locator("canvas").first).to_be_visible()

    entries = page.evaluate(
        """[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')].map(
          (entry) => [entry.name, entry.transferSize])"""
    )
    assert 20_000 < sum(size for _, size in entries) < BUDGET_BYTES, json.dumps(entries, indent=1)


def test_a_restart_of_the_broker_is_said_and_survived(browser: Browser, own_broker: ConsoleBroker) -> None:
    account = own_broker.make_account()
    account.client.create_queue("kept")
    with visiting(browser, own_broker) as visits:
        # The gateway ends with its broker, and comes back at the same port.
        visits.complaints.allow(r"ERR_|status 5\d\d|net::|Failed to fetch|EventSource")
        page = visits.sign_in(account.key, "queues")
        expect(page.get_by_role("link", name="kept").first).to_be_visible()

        account.client.close()
        own_broker.client.close()
        own_broker.server.stop()
        expect(page.locator(".broker.away")).to_be_visible()
        own_broker.server.start()
        own_broker.wait_for_gateway()

        expect(page.locator(".broker.away")).to_have_count(0)
        page.reload()
        expect(page.get_by_role("link", name="kept").first).to_be_visible()
