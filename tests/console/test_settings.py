"""The page of the settings in force."""

import re

from playwright.sync_api import Page, expect

from support.console.console_rig import Account, ConsoleBroker, Visits


def open_settings(page: Page, broker: ConsoleBroker) -> None:
    page.goto(f"{broker.console}settings")
    expect(page.get_by_role("button", name="heartbeat_ms")).to_be_visible()


def test_settings_show_value_default_origin_and_meaning(admin_page: Page, broker: ConsoleBroker):
    open_settings(admin_page, broker)

    listen = admin_page.locator("tbody tr").filter(has=admin_page.get_by_role("button", name="listen", exact=True))
    expect(listen).to_contain_text("127.0.0.1:0")
    expect(listen).to_contain_text("127.0.0.1:5680")
    expect(listen).to_contain_text("--listen")
    heartbeat = admin_page.locator("tbody tr").filter(has_text="heartbeat_ms").first
    expect(heartbeat).to_contain_text("30 s")
    expect(heartbeat).to_contain_text("interval of heartbeats that the server proposes")
    expect(heartbeat).to_contain_text("default")


def test_only_the_changed_settings_are_shown_on_request(admin_page: Page, broker: ConsoleBroker):
    open_settings(admin_page, broker)

    admin_page.get_by_label("Only what differs").check()

    expect(admin_page.get_by_role("button", name="listen", exact=True)).to_be_visible()
    expect(admin_page.get_by_role("button", name="heartbeat_ms")).to_have_count(0)
    admin_page.reload()
    expect(admin_page.get_by_role("button", name="listen", exact=True)).to_be_visible()
    expect(admin_page.get_by_role("button", name="heartbeat_ms")).to_have_count(0)


def test_the_search_finds_names_and_meanings(admin_page: Page, broker: ConsoleBroker):
    open_settings(admin_page, broker)

    admin_page.get_by_role("searchbox").fill("heartbeats that the")
    expect(admin_page.locator("tbody tr")).to_have_count(1)
    admin_page.get_by_role("searchbox").fill("no such setting")

    expect(admin_page.get_by_text("No setting matches “no such setting”.")).to_be_visible()


def test_a_setting_opens_with_its_range_and_the_ways_to_change_it(admin_page: Page, broker: ConsoleBroker):
    open_settings(admin_page, broker)

    admin_page.get_by_role("button", name="heartbeat_ms").click()

    detail = admin_page.locator(".setting-detail")
    expect(detail).to_contain_text(re.compile("1 s . 1 h"))
    expect(detail).to_contain_text("[network]\nheartbeat_ms = 30000")
    expect(detail).to_contain_text("CMQD_HEARTBEAT_MS=30000")
    expect(detail).to_contain_text("cmqd serve --heartbeat-ms 30000")
    detail.get_by_role("button", name=re.compile("As a flag")).click()
    assert admin_page.evaluate("navigator.clipboard.readText()") == "cmqd serve --heartbeat-ms 30000"


def test_meanings_are_in_chinese_too(visits: Visits, broker: ConsoleBroker):
    page = visits.sign_in(broker.admin, "settings", locale="zh-CN", viewport={"width": 360, "height": 740})

    expect(page.get_by_text("服务建议的心跳间隔")).to_be_visible()
    expect(page.locator("h1")).to_have_text("生效配置")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_settings_are_for_admin_alone(page: Page, account: Account, visits: Visits):
    expect(page.get_by_role("link", name="Connections")).to_be_visible()
    expect(page.get_by_role("link", name="Settings")).to_have_count(0)

    page.goto(f"{visits.broker.console}settings")

    expect(page.get_by_role("alert")).to_contain_text("The roles and names of your key do not allow this.")
