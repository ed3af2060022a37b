"""The page of accounts and keys: creation with the secret shown once, roles, names, states, deletion."""

import re

from playwright.sync_api import Locator, Page, expect

from cmqd_client.accounts import AccessKey
from cmqd_client.errors import AccountNotFound, PermissionDenied
from support.console.console_rig import Account, ConsoleBroker, Key, Visits
from support.eventually import eventually_elsewhere


def button(page: Page | Locator, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def key_row(page: Page, secret_id: str) -> Locator:
    return page.get_by_role("row").filter(has_text=secret_id)


def new_pair(page: Page) -> Key:
    """The pair that the dialog shows."""
    values = dialog(page).locator("dd code")
    expect(values).to_have_count(2)
    return Key(*values.all_text_contents())


def keys_of(account: Account) -> list[AccessKey]:
    return list(account.client.accounts.keys())


def test_a_key_is_created_and_its_secret_shown_once_ready_to_copy(visits: Visits, account: Account):
    account.client.create_queue("orders-eu")
    account.client.create_queue("bills")
    page = visits.sign_in(account.key, "keys")
    expect(page.get_by_role("heading", level=1)).to_have_text("Keys")
    expect(key_row(page, account.key.secret_id)).to_contain_text("this key")

    button(page, "Create key").click()
    for role in ("send", "consume", "read", "manage", "admin"):
        expect(dialog(page).get_by_label(role, exact=True)).to_have_accessible_description(re.compile(r"\w+"))
    expect(dialog(page).get_by_label("gateway")).to_have_count(0)
    button(dialog(page), "Producer").click()
    expect(dialog(page).get_by_label("consume", exact=True)).not_to_be_checked()
    dialog(page).get_by_label("send", exact=True).uncheck()
    dialog(page).get_by_label("Names that the key may use").fill("orders-* ü")
    button(dialog(page), "Create key").click()
    expect(dialog(page).get_by_text("Choose one role or more.")).to_be_visible()
    expect(dialog(page).get_by_text("ü is no pattern")).to_be_visible()
    dialog(page).get_by_label("read", exact=True).check()
    dialog(page).get_by_label("send", exact=True).check()
    dialog(page).get_by_label("Names that the key may use").fill("orders-*, news")
    button(dialog(page), "Create key").click()

    expect(dialog(page).get_by_text("The secret is shown only now.")).to_be_visible()
    made = new_pair(page)
    address = account.broker.client.status()["address"]
    expect(dialog(page)).to_contain_text(f"cmq://{made.secret_id}:{made.secret_key}@{address}'")
    button(dialog(page), f"Copy {made.secret_key}").click()
    page.keyboard.press("Escape")
    expect(button(dialog(page), "I have copied the secret")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == made.secret_key
    button(dialog(page), "I have copied the secret").click()
    row = key_row(page, made.secret_id)
    expect(row).to_contain_text("orders-* news")
    expect(row).to_contain_text("send")
    expect(page.get_by_text(made.secret_key)).to_have_count(0)
    client = account.broker.client_of(made)
    own = client.accounts.own_key()
    assert (set(own.roles), set(own.names)) == ({"send", "read"}, {"orders-*", "news"})
    client.queue("orders-eu").send(b"x")
    try:
        client.queue("bills").send(b"x")
    except PermissionDenied:
        pass
    else:
        raise AssertionError("the key used a name outside its patterns")
    client.close()


def test_roles_and_names_are_changed(visits: Visits, account: Account):
    worker = account.make_key("send", names=("orders-*",))
    page = visits.sign_in(account.key, "keys")

    button(key_row(page, worker.secret_id), f"Roles {worker.secret_id}").click()
    expect(dialog(page).get_by_label("send", exact=True)).to_be_checked()
    expect(dialog(page).get_by_label("Names that the key may use")).to_have_value("orders-*")
    button(dialog(page), "Operator").click()
    dialog(page).get_by_label("Names that the key may use").fill("*")
    button(dialog(page), "Save").click()

    expect(dialog(page)).to_have_count(0)
    expect(key_row(page, worker.secret_id)).to_contain_text("every name")
    (changed,) = [key for key in keys_of(account) if key.secret_id == worker.secret_id]
    assert (set(changed.roles), changed.names) == ({"read", "manage"}, ("*",))


def test_a_key_is_disabled_enabled_and_deleted_with_its_id_typed(visits: Visits, account: Account):
    worker = account.make_key("send")
    page = visits.sign_in(account.key, "keys")
    row = key_row(page, worker.secret_id)

    button(row, f"Disable {worker.secret_id}").click()
    button(dialog(page), "Disable").click()
    expect(row).to_contain_text("disabled")
    button(row, f"Enable {worker.secret_id}").click()
    expect(row).to_contain_text("enabled")

    button(row, f"Delete {worker.secret_id}").click()
    dialog(page).get_by_role("textbox").fill("something else")
    button(dialog(page), "Delete").click()
    expect(dialog(page).get_by_text(f"Type {worker.secret_id} to confirm").last).to_be_visible()
    dialog(page).get_by_role("textbox").fill(worker.secret_id)
    button(dialog(page), "Delete").click()
    expect(row).to_have_count(0)
    assert worker.secret_id not in {key.secret_id for key in keys_of(account)}


def test_the_last_key_is_kept_and_the_reason_is_in_the_dialog(visits: Visits, account: Account):
    page = visits.sign_in(account.key, "keys")

    button(page, f"Delete {account.key.secret_id}").click()
    expect(dialog(page).get_by_text("You are signed in with this key")).to_be_visible()
    dialog(page).get_by_role("textbox").fill(account.key.secret_id)
    button(dialog(page), "Delete").click()

    expect(dialog(page).get_by_role("alert")).to_contain_text("last")
    button(dialog(page), "Cancel").click()
    expect(key_row(page, account.key.secret_id)).to_be_visible()


def test_a_deleted_own_key_ends_the_session(visits: Visits, account: Account):
    # The broker ends the connections of the key before it answers.
    visits.complaints.allow("^status 504: DELETE /api/v1/keys/")
    own = account.make_key("admin", "read")
    page = visits.sign_in(own, "keys")

    button(page, f"Delete {own.secret_id}").click()
    dialog(page).get_by_role("textbox").fill(own.secret_id)
    button(dialog(page), "Delete").click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("Sign in")


def test_admin_creates_and_deletes_accounts_and_manages_their_keys(visits: Visits, broker: ConsoleBroker):
    page = visits.sign_in(broker.admin, "keys")
    expect(page.get_by_role("heading", name="Keys of account admin")).to_be_visible()

    button(page, "Create account").click()
    dialog(page).get_by_label("Name of the account").fill("no spaces")
    button(dialog(page), "Create account").click()
    expect(dialog(page).get_by_text("Must be 1 to 64")).to_be_visible()
    dialog(page).get_by_label("Name of the account").fill("bakery")
    button(dialog(page), "Create account").click()
    first = new_pair(page)
    button(dialog(page), "I have copied the secret").click()
    expect(page).to_have_url(re.compile(r"keys\?account=bakery$"))
    expect(page.get_by_role("heading", name="Keys of account bakery")).to_be_visible()
    expect(key_row(page, first.secret_id)).to_be_visible()
    client = broker.client_of(first)
    client.create_queue("bread")

    button(page, "Create key").click()
    expect(dialog(page).get_by_label("gateway")).to_have_count(0)
    button(dialog(page), "Create key").click()
    second = new_pair(page)
    button(dialog(page), "I have copied the secret").click()
    expect(key_row(page, second.secret_id)).to_be_visible()
    assert {key.account for key in broker.client.accounts.keys(account="bakery")} == {"bakery"}

    button(page, "Delete account").click()
    dialog(page).get_by_role("textbox").fill("bakery")
    button(dialog(page), "Delete account").click()
    expect(dialog(page).get_by_role("alert")).to_contain_text("1 queue")
    client.delete_queue("bread")
    client.close()
    button(dialog(page), "Delete account").click()
    expect(page).to_have_url(re.compile(r"/keys$"))
    expect(page.get_by_role("link", name="bakery")).to_have_count(0)

    def is_gone() -> bool:
        try:
            broker.client.accounts.keys(account="bakery")
        except AccountNotFound:
            return True
        return False

    eventually_elsewhere(is_gone)


def test_a_gateway_key_is_for_account_admin_alone_and_says_what_it_can_read(visits: Visits, broker: ConsoleBroker):
    page = visits.sign_in(broker.admin, "keys")

    button(page, "Create key").click()

    expect(dialog(page).get_by_label("gateway", exact=True)).to_have_accessible_description(
        re.compile("Read the secret of every key")
    )


def test_without_the_role_the_page_is_not_offered_and_says_why(visits: Visits, account: Account):
    page = visits.sign_in(account.make_key("manage", "read"), "keys")

    expect(page.get_by_role("alert")).to_contain_text("The roles and names of your key do not allow this.")
    expect(page.get_by_role("navigation").get_by_role("link", name="keys")).to_have_count(0)


def test_the_page_is_in_chinese_on_a_phone(visits: Visits, account: Account):
    page = visits.sign_in(account.key, "keys", locale="zh-CN", viewport={"width": 390, "height": 844})

    expect(page.get_by_role("heading", level=1)).to_have_text("密钥")
    expect(page.get_by_text("角色说明")).to_be_visible()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "nothing is wider than the phone"
