"""The site that is built from docs/: ``make lint`` builds it by this test."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from support.documents.pages import ROOT


class Resources(HTMLParser):
    """Collects the addresses that a browser loads for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Every attribute that loads; a link that is clicked (``a``, canonical) loads nothing."""
        attributes = dict(attrs)
        if tag == "link" and attributes.get("rel") not in {"canonical", "next", "prev"}:
            self.addresses.append(attributes.get("href") or "")
        if tag != "a":
            self.addresses += [value or "" for name, value in attrs if name in {"src", "srcset", "poster", "data"}]


def test_the_built_site_loads_nothing_from_another_host() -> None:
    built = subprocess.run(
        [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    site = ROOT / "build/site"
    outside = re.compile(r"^(?:[a-z]+:)?//")
    html = sorted(site.rglob("*.html"))

    assert {"index.html", "SPEC.html", "ARCHITECTURE.html", "settings.html"} <= {path.name for path in html}
    for path in html:
        resources = Resources()
        resources.feed(path.read_text())
        assert resources.addresses
        assert [address for address in resources.addresses if outside.match(address)] == [], path
        # The script of the theme loads libraries from a public host for these classes.
        assert not re.search(r'class="[^"]*\b(?:mermaid|arithmatex|glightbox|pyodide)\b', path.read_text()), path
    for path in site.rglob("*.css"):
        loaded = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')\s]+)", path.read_text())
        assert [address for address in loaded if outside.match(address)] == [], path
    for path in site.rglob("*.svg"):
        assert not re.search(r"(?:href|src)=", path.read_text()), path
