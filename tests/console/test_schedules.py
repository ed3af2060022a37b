"""The page of schedules: list, create, pause, resume, edit, delete."""

from playwright.sync_api import Locator, Page, expect

from support.console.console_rig import Account, Visits


def schedules(page: Page) -> Locator:
    """Show the page and return the table."""
    page.get_by_role("link", name="Schedules").click()
    return page.get_by_role("table", name="Schedules")


def row_of(table: Locator, name: str) -> Locator:
    return table.get_by_role("row").filter(has_text=name)


def test_a_schedule_is_created(page: Page, account: Account):
    account.client.create_queue("reports")
    page.get_by_role("link", name="Schedules").click()
    expect(page.get_by_role("heading", name="No schedules")).to_be_visible()
    expect(page.locator(".empty")).to_contain_text("cmq schedule create nightly-report")

    page.get_by_role("button", name="Create a schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("daily")
    dialog.get_by_label("Queue").fill("reports")
    dialog.get_by_label("Time zone").fill("Asia/Shanghai")
    dialog.get_by_label("Times").fill("30 6 * * mon-fri")
    dialog.get_by_label("Body").fill("make the report")
    dialog.get_by_label("Headers").fill("kind: report\nlevel: 2")
    dialog.get_by_role("button", name="Create a schedule").click()

    expect(page.get_by_role("status").get_by_text("Created daily; next message")).to_be_visible()
    row = row_of(page.get_by_role("table", name="Schedules"), "daily")
    for text in ("reports", "30 6 * * mon-fri", "Asia/Shanghai", "running"):
        expect(row).to_contain_text(text)
    info = account.client.schedules.info("daily")
    assert (info.queue, info.zone, info.body, info.paused) == ("reports", "Asia/Shanghai", b"make the report", False)
    assert info.headers == {"kind": "report", "level": "2"}
    row.get_by_role("button", name="daily").first.click()
    details = page.locator("tr.detail")
    expect(details).to_contain_text("make the report")
    expect(details).to_contain_text("level")


def test_faults_are_said_beside_their_fields(page: Page, account: Account):
    account.client.create_queue("reports")
    page.get_by_role("link", name="Schedules").click()
    page.get_by_role("button", name="Create a schedule").click()
    dialog = page.get_by_role("dialog")
    create = dialog.get_by_role("button", name="Create a schedule")
    create.click()
    expect(dialog.get_by_label("Name")).to_be_focused()
    expect(dialog.locator("[aria-invalid=true]")).to_have_count(4)

    dialog.get_by_label("Name").fill("two words")
    dialog.get_by_label("Queue").fill("reports")
    dialog.get_by_label("Times").fill("0 25 * * *")
    dialog.get_by_label("Body").fill("make the report")
    dialog.get_by_label("Headers").fill("no colon")
    create.click()
    expect(dialog.get_by_text("Line 1 is not name: value.")).to_be_visible()
    dialog.get_by_label("Headers").fill("")
    create.click()
    expect(dialog.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    dialog.get_by_label("Name").fill("daily")
    create.click()
    expect(dialog.get_by_label("Times")).to_have_attribute("aria-invalid", "true")
    expect(dialog).to_contain_text("has '25' as hour")
    dialog.get_by_label("Times").fill("0 5 * * *")
    dialog.get_by_label("Queue").fill("missing")
    create.click()
    expect(dialog.get_by_label("Queue")).to_have_attribute("aria-invalid", "true")
    expect(dialog).to_contain_text("queue 'missing' does not exist")
    dialog.get_by_label("Queue").fill("reports")
    create.click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    assert account.client.schedules.info("daily").cron == "0 5 * * *"


def test_a_schedule_is_paused_and_resumed(page: Page, account: Account):
    account.seed()
    row = row_of(schedules(page), "nightly")

    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    assert account.client.schedules.info("nightly").paused
    row.get_by_role("button", name="Resume").click()

    expect(row).to_contain_text("running")
    assert not account.client.schedules.info("nightly").paused


def test_an_edit_changes_the_changed_fields_alone(page: Page, account: Account):
    account.seed()
    row = row_of(schedules(page), "nightly")

    row.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Body")).to_have_value("close the day")
    dialog.get_by_label("Body").fill("close the day twice")
    dialog.get_by_role("button", name="Save").click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    info = account.client.schedules.info("nightly")
    assert (info.body, info.cron, info.zone, info.queue) == (
        b"close the day twice",
        "0 3 * * *",
        "Europe/Berlin",
        "orders",
    )


def test_a_schedule_is_deleted_once_its_name_is_typed(page: Page, account: Account):
    account.seed()
    row = row_of(schedules(page), "nightly")

    row.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog.locator("input[name=name]")).to_have_attribute("aria-invalid", "true")
    dialog.locator("input[name=name]").fill("nightly")
    dialog.get_by_role("button", name="Delete").click()

    expect(page.get_by_role("heading", name="No schedules")).to_be_visible()
    assert account.client.schedules.list().total == 0


def test_schedules_are_found_by_name(page: Page, account: Account):
    account.seed()
    account.client.schedules.create("weekly", "orders", "0 3 * * mon", b"x")
    table = schedules(page)
    expect(table.get_by_role("row")).to_have_count(3)

    page.get_by_role("searchbox").fill("week")

    expect(table.get_by_role("row")).to_have_count(2)
    expect(table).to_contain_text("weekly")
    page.get_by_role("searchbox").fill("none")
    expect(page.get_by_text("No schedule has this text in its name.")).to_be_visible()


def test_a_key_that_reads_is_offered_no_change(visits: Visits, account: Account):
    account.seed()
    page = visits.sign_in(account.make_key("read"), "schedules")

    expect(page.get_by_role("table", name="Schedules")).to_contain_text("nightly")
    for name in ("Create a schedule", "Pause", "Edit", "Delete"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)


def test_an_edit_keeps_headers_that_lines_cannot_show(page: Page, account: Account):
    account.seed()
    account.client.schedules.set("nightly", headers={"note": " spaces around "})
    row = row_of(schedules(page), "nightly")

    row.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Time zone").fill("UTC")
    dialog.get_by_role("button", name="Save").click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    info = account.client.schedules.info("nightly")
    assert (info.zone, info.headers) == ("UTC", {"note": " spaces around "})


def test_the_buttons_of_a_row_stay_in_view_on_narrow_screens(visits: Visits, account: Account):
    name = "a-schedule-with-a-long-name-of-the-nightly-reports"
    account.client.create_queue("a-queue-with-a-long-name-of-the-nightly-reports")
    account.client.schedules.create(name, "a-queue-with-a-long-name-of-the-nightly-reports", "0 9 * * mon-fri", b"x")
    for width in (1280, 800):
        page = visits.sign_in(account.key, "schedules", viewport={"width": width, "height": 800})
        row = row_of(page.get_by_role("table", name="Schedules"), name)
        for button in ("Pause", "Edit", "Delete"):
            box = row.get_by_role("button", name=f"{button} {name}").bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
