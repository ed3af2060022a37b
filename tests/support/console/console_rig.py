"""A broker with its console, accounts for tests, and the browser's complaints.

An account stands for a test: its queues and topics are invisible to the tests of other accounts, so one broker serves
all tests of a run.
"""

import contextlib
import json
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response

from cmqd_client import sync
from cmqd_client.address import parse_address
from cmqd_gateway.console.signed_texts import SIGN_IN_SECONDS, Purpose, sign
from support.eventually import eventually_elsewhere
from support.processes.running_server import RunningServer
from support.processes.silent_port import reserve_port


class Key:
    """A key pair."""

    def __init__(self, secret_id: str, secret_key: str) -> None:
        self.secret_id = secret_id
        self.secret_key = secret_key

    def __repr__(self) -> str:
        return f"Key({self.secret_id!r})"


class ConsoleBroker:
    """``cmqd serve --http`` in a process of its own. A restart has the same address of HTTP."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._reserved = reserve_port()
        http = ("--http", f"127.0.0.1:{self._reserved.getsockname()[1]}", "--cmq-tcp", "127.0.0.1:0")
        self.server = RunningServer(folder, *http, *flags)
        self._accounts = 0

    def __enter__(self) -> Self:
        self.server.__enter__()
        self._process_id = 0
        self.wait_for_gateway()
        self.client = sync.connect(self.server.url)
        self.client.open()
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.suppress(Exception):
            self.client.close()
        self.server.__exit__(*error)
        self._reserved.close()

    def wait_for_gateway(self) -> None:
        """Wait until a gateway listens, a new one after a restart of the broker."""
        file = self.server.ready_file.with_name(f"{self.server.ready_file.name}.http")

        def ready() -> dict[str, Any]:
            return json.loads(file.read_text()) if file.exists() else {}

        eventually_elsewhere(lambda: ready().get("pid", self._process_id) != self._process_id)
        self._process_id = int(ready()["pid"])
        self.address = f"{ready()['host']}:{ready()['port']}"
        self.cmq_tcp_address = str(ready()["cmq_tcp_address"])

    @property
    def console(self) -> str:
        """URL of the console, with a slash at the end."""
        return f"http://{self.address}/console/"

    @property
    def admin(self) -> Key:
        """The key of account ``admin``, which the broker made at its first start."""
        address = parse_address(self.server.url)
        return Key(address.secret_id, address.secret_key)

    def client_of(self, key: Key) -> sync.Client:
        """Return an open client with a key."""
        own = parse_address(self.server.url)
        client = sync.connect(f"cmq://{key.secret_id}:{key.secret_key}@{own.host}:{own.port}")
        client.open()
        return client

    def make_account(self) -> "Account":
        """Return a new account."""
        self._accounts += 1
        name = f"test{self._accounts}"
        made = self.client.accounts.create(name)
        return Account(self, name, Key(made.secret_id, str(made.secret_key)))


class Account:
    """An account of a test, with an open client."""

    def __init__(self, broker: ConsoleBroker, name: str, key: Key) -> None:
        self.broker = broker
        self.name = name
        self.key = key
        self.client = broker.client_of(key)

    def make_key(self, *roles: str, names: tuple[str, ...] | None = None) -> Key:
        """Return another key of the account with these roles."""
        made = self.broker.client.accounts.create_key(account=self.name, roles=roles, names=names)
        return Key(made.secret_id, str(made.secret_key))

    def seed(self) -> Self:
        """Fill the account: queues with messages in each state, dead letters, a topic, half messages, a schedule."""
        client = self.client
        dead = client.create_queue("orders-dead")
        orders = client.create_queue(
            "orders",
            visibility_timeout=3_600,
            rewind=86_400,
            dead_letter_queue="orders-dead",
            dead_letter_max_receives=3,
        )
        orders.send_batch([f'{{"order": {number}, "total": {number * 7}}}'.encode() for number in range(20)])
        orders.send(b"later", delay=3_600)
        orders.send(bytes(range(256)))
        for message in orders.receive(4, wait=0):
            message.reject("the total is negative")
        orders.receive(3, wait=0)
        for message in orders.receive(2, wait=0):
            message.delete()
        bills = client.create_queue("bills", transactional=True, first_check=3_600)
        bills.send_half_batch([b"half one", b"half two"])
        client.create_queue("empty")
        client.create_queue("eu-orders")
        news = client.create_topic("news")
        news.subscribe("orders-eu", queue="eu-orders", filter_tags=["eu", "paid"])
        news.subscribe("everything", queue="empty")
        routed = client.create_topic("routed", filter_type="routing")
        routed.subscribe("stock", queue="eu-orders", binding_keys=["stock.*.nyse", "#.error"])
        news.publish(b"hello", tags=["eu"])
        client.schedules.create("nightly", "orders", "0 3 * * *", b"close the day", zone="Europe/Berlin")
        # The move to the dead-letter queue follows the answer.
        eventually_elsewhere(lambda: dead.attributes().active == 4)
        return self


class Complaints:
    """Errors that a browser reports: of scripts, of the Content-Security-Policy, of files, of requests to other hosts.

    A refused request (4xx) of the JSON API is no complaint: pages show the refusal in words, and their tests look.
    """

    def __init__(self, own: str) -> None:
        self.texts: list[str] = []
        self._own = own
        self._allowed: list[re.Pattern[str]] = []

    def allow(self, pattern: str) -> None:
        """Expect complaints that this regular expression matches: of a restart of the broker, for example."""
        self._allowed.append(re.compile(pattern))

    def watch(self, page: Page) -> None:
        """Collect the complaints of a page."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.texts.append(f"error: {error}\n{error.stack}"))
        page.on("request", self._request)
        page.on("response", self._response)

    @property
    def unexpected(self) -> list[str]:
        """The complaints that no allowed pattern matches."""
        return [text for text in self.texts if not any(pattern.search(text) for pattern in self._allowed)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.texts.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((f"{self._own}/", "data:", "blob:")):
            self.texts.append(f"request to another host: {request.url}")

    def _response(self, response: Response) -> None:
        path = response.url.removeprefix(self._own)
        if response.status >= 500 or (response.status >= 400 and not path.startswith(("/api/v1/", "/console/session"))):
            self.texts.append(f"status {response.status}: {response.request.method} {path}")


class Visits:
    """Opens signed-in pages; each in a context of its own, with its own cookies and storage."""

    def __init__(self, browser: Browser, broker: ConsoleBroker) -> None:
        self.browser = browser
        self.broker = broker
        self.complaints = Complaints(f"http://{broker.address}")
        self._contexts: list[BrowserContext] = []

    def context(self, **options: Any) -> BrowserContext:
        """Return a new context: English, light and 1280 x 800 unless the options differ."""
        options.setdefault("locale", "en-US")
        options.setdefault("color_scheme", "light")
        options.setdefault("viewport", {"width": 1280, "height": 800})
        options.setdefault("reduced_motion", "reduce")
        options.setdefault("permissions", ["clipboard-read", "clipboard-write"])
        context = self.browser.new_context(base_url=self.broker.console, **options)
        self._contexts.append(context)
        return context

    def stranger(self, **options: Any) -> Page:
        """Return a page that is not signed in and has loaded nothing."""
        page = self.context(**options).new_page()
        self.complaints.watch(page)
        return page

    def sign_in(self, key: Key, path: str = "", **options: Any) -> Page:
        """Return a page that is signed in with a key and shows the page of a path below ``/console/``."""
        page = self.stranger(**options)
        self.sign_in_page(page, key)
        page.goto(f"{self.broker.console}{path}")
        page.locator("nav").first.wait_for(state="attached")
        return page

    def sign_in_page(self, page: Page, key: Key) -> None:
        """Give the context of a page a session."""
        with contextlib.suppress(Exception):
            page.context.clear_cookies()
        answer = page.request.post(f"{self.broker.console}session", data=pair(key))
        assert answer.ok, answer.text()

    def link(self, key: Key) -> str:
        """Return a link as ``cmq console`` prints it, to the page of the topics."""
        now = int(time.time())
        token = sign(Purpose.SIGN_IN, key.secret_id, key.secret_key, now, now + SIGN_IN_SECONDS)
        return f"{self.broker.console}topics#token={token}"

    def close(self) -> None:
        """Close all contexts."""
        for context in self._contexts:
            context.close()


def pair(key: Key) -> dict[str, str]:
    """Return the body of a sign-in."""
    return {"secret_id": key.secret_id, "secret_key": key.secret_key}


@contextmanager
def visits(browser: Browser, broker: ConsoleBroker) -> Generator[Visits]:
    """Open pages, close them at the end, and fail if the browser complained."""
    opened = Visits(browser, broker)
    try:
        yield opened
    finally:
        opened.close()
    complaints = opened.complaints.unexpected
    assert not complaints, "\n".join(complaints)
