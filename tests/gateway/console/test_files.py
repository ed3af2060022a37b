"""The files of the console over HTTP: the shell for every page, versions, ETag, gzip, the policy, and their size."""

import gzip
import re
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
import yarl

from cmqd_gateway.console.files import CONTENT_SECURITY_POLICY, static_file, static_files
from support.gateway.gateway_rig import GatewayRig

BUDGET_BYTES = 300_000
"""All files of the console together, as a browser that visits every page transfers them."""
LIT = "vendor/lit-html-3.3.3/lit-html.js"


async def get(
    rig: GatewayRig, path: str, headers: Mapping[str, str] | None = None
) -> tuple[aiohttp.ClientResponse, bytes]:
    url = yarl.URL(f"http://{rig.host}{path}", encoded=True)
    skipped = ("Accept-Encoding",)
    async with rig.session.get(url, headers=headers, skip_auto_headers=skipped, allow_redirects=False) as response:
        return response, await response.read()


@pytest.mark.parametrize("path", ["", "queues", "queues/orders", "topics/a.b/subscriptions/c", "queues/%E9%98%9F"])
async def test_each_page_path_has_the_shell(path: str, rig: GatewayRig):
    response, body = await get(rig, f"/console/{path}")

    assert (response.status, response.content_type, response.charset) == (200, "text/html", "utf-8")
    assert body == static_files().shell.content
    assert response.headers["Cache-Control"] == "no-cache"


async def test_short_addresses_lead_to_the_console(rig: GatewayRig):
    root, _ = await get(rig, "/")
    console, _ = await get(rig, "/console")

    assert (root.status, root.headers["Location"]) == (307, "console/")
    assert (console.status, console.headers["Location"]) == (308, "/console/")


@pytest.mark.parametrize("path", ["/console/", f"/console/static/{LIT}", "/console/static/nope.js"])
async def test_each_answer_has_the_policy(path: str, rig: GatewayRig):
    response, _ = await get(rig, path)

    assert response.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"


def test_the_policy_allows_no_inline_code_and_no_other_host():
    directives = {
        name: sources for name, _, sources in (part.partition(" ") for part in CONTENT_SECURITY_POLICY.split("; "))
    }

    assert directives["default-src"] == directives["form-action"] == directives["frame-ancestors"] == "'none'"
    sources = {source for sources in directives.values() for source in sources.split()}
    assert sources == {"'none'", "'self'", "data:", "'script'", "lit-html"}


async def test_a_file_of_the_version_is_kept_and_a_file_without_is_asked_for_again(rig: GatewayRig):
    kept, content = await get(rig, f"/console/static/{static_files().version}/{LIT}")
    asked, same = await get(rig, f"/console/static/{LIT}")

    assert (kept.status, kept.content_type) == (200, "text/javascript")
    assert "immutable" in kept.headers["Cache-Control"]
    assert asked.headers["Cache-Control"] == "no-cache"
    assert content == same == static_files().by_path[LIT].content


@pytest.mark.parametrize(
    "path", ["nope.js", "0000000000000000/app/main.js", "", "../routes.py", "%2e%2e/routes.py", "index.html", "vendor"]
)
async def test_other_paths_of_files_are_not_found(path: str, rig: GatewayRig):
    response, _ = await get(rig, f"/console/static/{path}")

    assert response.status == 404
    assert response.headers["Cache-Control"] == "no-store"


async def test_a_browser_that_has_the_file_gets_no_body(rig: GatewayRig):
    path = f"/console/static/{LIT}"
    plain, _ = await get(rig, path)
    packed, _ = await get(rig, path, {"Accept-Encoding": "gzip"})

    assert plain.headers["ETag"] != packed.headers["ETag"]
    for first, coding in ((plain, {}), (packed, {"Accept-Encoding": "gzip"})):
        for tag in (first.headers["ETag"], f'"other", W/{first.headers["ETag"]}', "*"):
            again, body = await get(rig, path, {"If-None-Match": tag, **coding})
            assert (again.status, body) == (304, b"")
            assert again.headers["ETag"] == first.headers["ETag"]
    other, body = await get(rig, path, {"If-None-Match": packed.headers["ETag"]})
    assert (other.status, bool(body)) == (200, True)


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("deflate,gzip ; q=1", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("identity", False),
    ],
)
async def test_files_are_compressed_for_browsers_that_take_gzip(accepted: str, is_packed: bool, rig: GatewayRig):
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        url = f"http://{rig.host}/console/static/{LIT}"
        async with session.get(url, headers={"Accept-Encoding": accepted}) as response:
            body = await response.read()

    assert (response.headers.get("Content-Encoding") == "gzip") is is_packed
    assert response.headers["Vary"] == "Accept-Encoding"
    assert (gzip.decompress(body) if is_packed else body) == static_files().by_path[LIT].content


def test_a_file_that_gzip_makes_no_shorter_stays_as_it_is():
    assert static_file("tiny.txt", b"x").compressed is None


def test_a_file_of_an_unknown_type_is_an_error():
    with pytest.raises(KeyError):
        static_file("page.php", b"x")


def test_the_shell_refers_to_files_of_its_version():
    files = static_files()
    shell = files.shell.content.decode()

    references: list[str] = re.findall(r'(?:src|href)="([^"]*)"', shell)
    prefix = f"/console/static/{files.version}/"
    assert [path for path in references if path != "data:," and path.removeprefix(prefix) not in files.by_path] == []
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|\bstyle=", shell), "the policy forbids inline code"


def imported_paths(path: str, source: str) -> Any:
    """Return the paths of the modules that a module imports, relative paths resolved."""
    pattern = r"""(?:\bfrom|\bimport)\s*\(?\s*['"]([^'"\n]+)['"]"""
    return [str(yarl.URL(f"http://x/{path}").join(yarl.URL(name)).path)[1:] for name in re.findall(pattern, source)]


def test_each_import_of_a_module_names_a_file_that_exists():
    files = static_files().by_path
    missing = [
        f"{path} imports {name}"
        for path, file in files.items()
        if path.endswith(".js") and not path.startswith("vendor/uplot")
        for name in imported_paths(path, file.content.decode())
        if name not in files
    ]

    assert missing == []
    assert imported_paths(f"{LIT}/../directives/live.js".replace("lit-html.js/../", ""), 'from"../lit-html.js"') == [
        LIT
    ]


def test_no_file_asks_another_host():
    """An address in a comment or of a name space is no request; a policy in the browser would refuse the request."""
    pattern = re.compile(rb"""(?:src|href|url|fetch|import)\s*[=(:]\s*["'(]?\s*(?:https?:)?//""")
    assert [path for path, file in static_files().by_path.items() if pattern.search(file.content)] == []


def test_all_files_together_keep_to_the_budget():
    files = static_files()
    sizes = {
        path: len(file.compressed or file.content)
        for path, file in [("index.html", files.shell), *files.by_path.items()]
        if not path.endswith(".txt")
    }

    assert sum(sizes.values()) <= BUDGET_BYTES, sorted(sizes.items(), key=lambda entry: -entry[1])[:10]


def test_vendored_libraries_have_their_version_and_licence():
    files = static_files().by_path
    folders = {path.split("/")[1] for path in files if path.startswith("vendor/")}

    assert folders == {"lit-html-3.3.3", "uplot-1.6.32"}
    assert b"BSD 3-Clause License" in files["vendor/lit-html-3.3.3/LICENSE.txt"].content
    assert b"The MIT License" in files["vendor/uplot-1.6.32/LICENSE.txt"].content
    assert b'"3.3.3"' in files[LIT].content
    assert b"(v1.6.32)" in files["vendor/uplot-1.6.32/uPlot.esm.js"].content[:400]
