"""The built site of docs/, for screen readers and the keyboard."""

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from support.console.chromium import AXE_FILE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> Path:
    subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict", "--clean"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return ROOT / "build/site"


@pytest.mark.parametrize("name", ["index.html", "client.html", "benchmarks.html", "protocol/SPEC.html"])
def test_axe_finds_nothing_serious(browser: Browser, site: Path, name: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / name).as_uri())
    page.evaluate(AXE_FILE.read_text())

    report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")

    faults = [
        (fault["id"], node["html"][:160])
        for fault in report["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"][:3]
    ]
    assert faults == []
    assert report["testEngine"]["name"] == "axe-core"
    page.close()
