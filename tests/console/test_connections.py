"""The page of connections and waiting receives."""

import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from cmqd_client import sync
from cmqd_client.address import parse_address
from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.cmq.tcp import commands
from cmqd_gateway.cmq.tcp.frames import to_frame
from cmqd_gateway.cmq.tcp.login import sign
from cmqd_gateway.cmq.tcp.proto2 import encode_bytes
from support.console.console_rig import Account, ConsoleBroker, Visits
from support.eventually import eventually_elsewhere


@contextmanager
def a_client(account: Account, product: str) -> Generator[sync.Client]:
    address = parse_address(account.broker.server.url)
    url = f"cmq://{account.key.secret_id}:{account.key.secret_key}@{address.host}:{address.port}"
    with sync.connect(url, product=product) as client:
        yield client


@contextmanager
def waiting(client: sync.Client, queue: str) -> Generator[None]:
    """Keep a receive waiting, and send a message that ends the wait."""
    thread = threading.Thread(target=lambda: client.queue(queue).receive(5, wait=30))
    thread.start()
    try:
        eventually_elsewhere(lambda: client.waiting_receives(search=queue).total)
        yield
    finally:
        client.queue(queue).send(b"end")
        thread.join()


def test_connections_show_client_key_and_figures_and_open_for_the_rest(account: Account, visits: Visits):
    with a_client(account, "till/2") as till:
        till.create_queue("jobs")
        page = visits.sign_in(account.key, "connections")
        row = page.locator("tbody tr").filter(has_text="till/2")
        expect(row).to_contain_text("127.0.0.1:")
        expect(row).to_contain_text("yours")
        expect(page.locator("tbody")).to_contain_text("Gateway")
        expect(page.get_by_text("share the connections of the gateway")).to_be_visible()

        row.get_by_role("button", name="till/2").click()

        expect(page.locator(".connection-detail")).to_contain_text(account.key.secret_id)
        expect(page.locator(".connection-detail")).to_contain_text(account.name)
        expect(page.get_by_role("button", name="till/2")).to_have_attribute("aria-expanded", "true")


def test_a_new_connection_appears_without_a_load_until_the_list_is_held(account: Account, visits: Visits):
    page = visits.sign_in(account.key, "connections")
    expect(page.locator("tbody tr").first).to_be_visible()
    with a_client(account, "late-comer"):
        expect(page.locator("tbody")).to_contain_text("late-comer")
        page.get_by_label("Live").uncheck()
    with page.expect_request(re.compile("/api/v1/connections")):
        page.get_by_label("Live").check()
    expect(page.locator("tbody")).not_to_contain_text("late-comer")


def test_the_search_and_the_order_are_the_servers_and_stay_in_the_address(account: Account, visits: Visits):
    with a_client(account, "alpha"), a_client(account, "beta"):
        page = visits.sign_in(account.key, "connections")
        page.get_by_role("searchbox").fill("ALPHA")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page).to_have_url(re.compile(r"search=ALPHA"))
        page.get_by_role("searchbox").fill("no such client")
        expect(page.get_by_text("Nothing matches “no such client”.")).to_be_visible()
        page.get_by_role("searchbox").fill("")
        expect(page.locator("tbody tr").nth(2)).to_be_visible()

        page.get_by_role("button", name="Client", exact=True).click()
        expect(page.get_by_role("columnheader", name="Client")).to_have_attribute("aria-sort", "ascending")
        expect(page.locator("tbody tr").first).to_contain_text("alpha")
        page.reload()
        expect(page.locator("tbody tr").first).to_contain_text("alpha")
        expect(page).to_have_url(re.compile("sort=product"))


def test_waiting_receives_lead_from_their_connection_to_their_queue(account: Account, visits: Visits):
    account.client.create_queue("jobs")
    with a_client(account, "worker") as worker, waiting(worker, "jobs"):
        page = visits.sign_in(account.key, "connections")
        row = page.locator("tbody tr").filter(has_text="worker")
        row.get_by_role("link", name=re.compile("^1 waiting")).click()

        expect(page.get_by_role("tab", name="Waiting receives")).to_have_attribute("aria-selected", "true")
        receive = page.locator("tbody tr")
        expect(receive).to_have_count(1)
        expect(receive).to_contain_text("worker")
        page.get_by_role("button", name=re.compile("Show the receives of all connections")).click()
        expect(page).not_to_have_url(re.compile("connection="))
        page.get_by_role("link", name="jobs").click()
        expect(page).to_have_url(re.compile("/console/queues/jobs$"))


def test_without_waiting_receives_the_page_shows_how_to_wait(account: Account, visits: Visits):
    page = visits.sign_in(account.key, "connections")
    page.get_by_role("tab", name="Connections").press("ArrowRight")

    expect(page.get_by_role("heading", name="No receive waits")).to_be_visible()
    expect(page.get_by_text("cmq receive orders --wait 30s --delete")).to_be_visible()
    expect(page.get_by_role("tab", name="Waiting receives")).to_be_focused()


def test_consumers_are_listed_by_name_with_their_messages_and_failures(account: Account, visits: Visits):
    account.client.create_queue("jobs")
    account.client.create_queue("others")
    address = parse_address(account.broker.server.url)
    key = f"{account.key.secret_id}:{account.key.secret_key}"
    with sync.connect(f"cmq://{key}@{address.host}:{address.port}", name="worker@web-3") as worker:
        for number in range(3):
            worker.queue("jobs").send(b"%d" % number)
        worker.queue("jobs").receive(3)[0].release()
        worker.queue("others").receive(wait=0)

        page = visits.sign_in(account.key, "connections?tab=consumers")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(2)
        row = rows.filter(has_text="jobs")
        expect(row).to_contain_text("worker@web-3")
        expect(row).to_contain_text("127.0.0.1")
        expect(row.locator("td").nth(3)).to_have_text("2")
        expect(row.locator("td").last).to_have_text("1")
        page.get_by_role("searchbox").fill("OTHERS")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("none")

        page.goto(re.sub(r"\?.*", "", page.url) + "?tab=consumers&queue=jobs")
        expect(rows).to_have_count(1)
        page.get_by_role("button", name=re.compile("Show the consumers of all queues")).click()
        expect(rows).to_have_count(2)


@contextmanager
def a_tcp_client(account: Account, client_id: str) -> Generator[None]:
    """A program of CMQ's TCP protocol that has logged in and waits for a message."""
    key = KeySecret(account.key.secret_id, account.key.secret_key)
    fields = {"secretId": key.secret_id, "signature": sign(client_id, key).decode(), "clientId": client_id}
    host, port = account.broker.cmq_tcp_address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as program:
        for cmd, body in (
            (commands.LOG_IN, fields | {"signatureMethod": "HmacSHA1"}),
            (commands.RECEIVE, {"queueName": "jobs", "pollingWaitSeconds": 30}),
        ):
            command = commands.COMMANDS[cmd]
            content = encode_bytes(command.request.encode(body), command.body)
            program.sendall(to_frame(commands.HEADER.encode({"seqno": cmd, "cmd": cmd}) + content))
        # The answer to the log-in.
        assert program.recv(1)
        yield


def test_clients_of_cmqs_tcp_protocol_show_client_id_key_and_age(account: Account, visits: Visits):
    account.client.create_queue("jobs")
    page = visits.sign_in(account.key, "connections?tab=cmq-tcp")
    expect(page.get_by_role("heading", name="No client of CMQ", exact=False)).to_be_visible()

    with a_tcp_client(account, "10.0.0.7@till"), a_tcp_client(account, "10.0.0.8@desk"):
        row = page.locator("tbody tr").filter(has_text="10.0.0.7@till")
        expect(row).to_contain_text("127.0.0.1")
        expect(row).to_contain_text("yours")
        expect(row).to_contain_text("ago")
        expect(row.locator("td").last).to_have_text("1")
        expect(page.get_by_text("2 clients")).to_be_visible()
        page.get_by_role("searchbox").fill("DESK")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page).to_have_url(re.compile("tab=cmq-tcp"))

    expect(page.get_by_text("Nothing matches “DESK”.")).to_be_visible()


def test_the_page_is_not_offered_without_the_role_and_refuses_in_words(account: Account, visits: Visits):
    key = account.make_key("read")
    page = visits.sign_in(key, "topics")
    expect(page.get_by_role("link", name="Topics")).to_be_visible()
    expect(page.get_by_role("link", name="Connections")).to_have_count(0)

    page.goto(f"{visits.broker.console}connections")

    expect(page.get_by_role("alert")).to_contain_text("The roles and names of your key do not allow this.")


def test_admin_sees_the_connections_of_all_accounts(admin_page: Page, account: Account, broker: ConsoleBroker):
    admin_page.goto(f"{broker.console}connections?search={account.name}")

    expect(admin_page.get_by_role("columnheader", name="Account")).to_be_visible()
    expect(admin_page.locator("tbody tr").first).to_contain_text(account.name)


@pytest.mark.parametrize("path", ["connections", "connections?tab=waiting", "connections?tab=consumers"])
def test_on_a_phone_nothing_is_wider_than_the_window(account: Account, visits: Visits, path: str):
    account.client.create_queue("a-queue-with-a-rather-long-name-for-a-telephone")
    with waiting(account.client, "a-queue-with-a-rather-long-name-for-a-telephone"):
        page = visits.sign_in(account.key, path, viewport={"width": 360, "height": 740}, locale="zh-CN")
        expect(page.locator("tbody tr").first).to_be_visible()
        expect(page.locator("h1")).to_have_text("连接")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
