"""A screenshot of every page in both themes, two sizes and two languages, in ``build/console/``, for people to look at.

build/console/queues.light.1280.en.png
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from support.console.console_rig import Account, ConsoleBroker, Visits
from support.console.console_rig import visits as visiting
from support.console.pages import PAGES, existing_pages, show

FOLDER = Path(__file__).resolve().parents[2] / "build" / "console"
LANGUAGES = {"en": "en-US", "zh": "zh-CN"}
SIZES = {"1280": {"width": 1280, "height": 800}, "390": {"width": 390, "height": 844}}
FORMS = list(product(("light", "dark"), SIZES, LANGUAGES))


@pytest.fixture(scope="module")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Visits, dict[str, Page]]]:
    """A broker of its own, with the things of one account alone, and a signed-in page for each form."""
    with ConsoleBroker(tmp_path_factory.mktemp("screenshots")) as broker:
        account = Account(broker, "admin", broker.admin).seed()
        with visiting(browser, broker) as visits:
            opened: dict[str, Page] = {}
            for theme, size, language in FORMS:
                options: dict[str, Any] = {"color_scheme": theme, "viewport": SIZES[size]}
                options["locale"] = LANGUAGES[language]
                opened[f"{theme}.{size}.{language}"] = visits.sign_in(account.key, "topics", **options)
            yield visits, opened
        account.client.close()


@pytest.mark.parametrize("form", [".".join(form) for form in FORMS])
@pytest.mark.parametrize("name", existing_pages())
def test_the_page_is_drawn(name: str, form: str, pages: tuple[Visits, dict[str, Page]]) -> None:
    visits, opened = pages
    page = opened[form]
    show(visits, page, PAGES[name])
    FOLDER.mkdir(parents=True, exist_ok=True)

    page.screenshot(path=FOLDER / f"{name}.{form}.png", full_page=True, animations="disabled")

    language = form.rpartition(".")[2]
    assert page.evaluate("document.documentElement.lang") == {"en": "en", "zh": "zh-CN"}[language]
    assert page.locator("h1").first.inner_text().strip()
    text = page.locator("body").inner_text()
    assert "undefined" not in text
    assert "NaN" not in text
    assert "[object" not in text


@pytest.mark.parametrize("form", [".".join(form) for form in FORMS])
def test_the_sign_in_is_drawn(form: str, pages: tuple[Visits, dict[str, Page]]) -> None:
    visits, _ = pages
    theme, size, language = form.split(".")
    page = visits.stranger(color_scheme=theme, viewport=SIZES[size], locale=LANGUAGES[language])
    show(visits, page, "")
    FOLDER.mkdir(parents=True, exist_ok=True)

    page.screenshot(path=FOLDER / f"sign-in.{form}.png", full_page=True, animations="disabled")

    assert page.locator("h1").first.inner_text().strip()
