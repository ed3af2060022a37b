"""Attributes that the console does not know, as the browser gets them from a newer gateway."""

from collections.abc import Mapping
from typing import Any

from playwright.sync_api import Page, Route

DEFAULTS = {"seconds": 5, "choice": "a", "texts": ["x"]}


def declare(page: Page, attributes: Mapping[str, Mapping[str, str]], shown: Mapping[str, Mapping[str, Any]]) -> None:
    """Add attributes to the OpenAPI document and to replies, and load the page again.

    Args:
        page: a signed-in page.
        attributes: unit by name, by schemas with spaces between them.
        shown: value by name, by the path of an object below ``/api/v1``.
    """

    def with_declarations(route: Route) -> None:
        document = route.fetch().json()
        for schemas, units in attributes.items():
            for name, unit in units.items():
                field = {"title": f"Name of {name}", "x-hint": f"Meaning of {name}.", "x-unit": unit}
                field |= {"x-default": DEFAULTS[unit], "minimum": 0, "maximum": 60, "enum": ["a", "b"]}
                for schema in schemas.split():
                    document["components"]["schemas"][schema]["properties"][name] = field
        route.fulfill(json=document)

    def with_values(route: Route) -> None:
        info = route.fetch().json()
        info.get("attributes", info).update(shown[route.request.url.partition("/api/v1")[2]])
        route.fulfill(json=info)

    page.route("**/openapi.json", with_declarations)
    for path in shown:
        page.route(f"**/api/v1{path}", with_values)
    page.reload()
