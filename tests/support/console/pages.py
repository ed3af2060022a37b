"""Every page of the console, for tests over all pages."""

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from support.console.console_rig import Visits

SHELL = Path(__file__).resolve().parents[3] / "client/cmqd_gateway/console/static/app/shell.js"
PAGES = {
    "overview": "",
    "queues": "queues",
    "queue": "queues/orders",
    "topics": "topics",
    "topic": "topics/news",
    "topic-routing": "topics/routed",
    "dead-letters": "dead-letters",
    "half-messages": "half-messages",
    "message-history": "message-history",
    "schedules": "schedules",
    "connections": "connections",
    "keys": "keys",
    "audit": "audit",
    "storage": "storage",
    "settings": "settings",
    "not-found": "no/such/page",
}
"""Paths below ``/console/`` by name, in an account that ``Account.seed`` has filled."""


def declared_files() -> set[str]:
    """Return the files of the pages that the shell declares."""
    return set(re.findall(r"file: '(?:\w+/)?([\w-]+)'", SHELL.read_text()))


def existing_pages() -> dict[str, str]:
    """Return the pages whose files exist."""
    files = {file.stem for file in (SHELL.parents[1] / "pages").rglob("*.js")}
    return {name: path for name, path in PAGES.items() if name.removesuffix("-routing") in files}


def show(visits: Visits, page: Page, path: str) -> None:
    """Open a page, and wait until it has loaded its data."""
    page.goto(f"{visits.broker.console}{path}")
    expect(page.locator("h1").first).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
