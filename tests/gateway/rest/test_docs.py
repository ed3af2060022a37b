"""The page docs/json-api.md: its examples run, and its table has every operation."""

import asyncio
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from cmqd_gateway.rest.table import OPERATIONS
from support.documents.pages import ROOT, blocks_to_run
from support.gateway import curl
from support.gateway.rest_calls import RestCalls

PAGE = ROOT / "docs/json-api.md"


def environment(rest: RestCalls, folder: Path, command: str) -> dict[str, str]:
    path = os.environ["PATH"]
    if command == "substitute" or shutil.which("curl") is None:
        script = folder / "curl"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{curl.__file__}" "$@"\n')
        script.chmod(0o755)
        path = f"{folder}{os.pathsep}{path}"
    key = f"{rest.key.secret_id}:{rest.key.secret_key}"
    return os.environ | {"PATH": path, "CMQD": f"http://{rest.rig.host}", "KEY": key, "no_proxy": "127.0.0.1"}


@pytest.mark.parametrize("command", ["curl", "substitute"])
async def test_the_examples_of_the_page_run(command: str, rest: RestCalls, tmp_path: Path):
    # The queue of the rig has the name of the queue of the page, which the page creates.
    await rest.ok("delete_queue", queue="orders")
    (script,) = blocks_to_run(PAGE, "sh")

    process = await asyncio.create_subprocess_exec(
        *("sh", "-e", "-u", "-c", script),
        env=environment(rest, tmp_path, command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()

    assert (process.returncode, errors) == (0, b""), output
    replies: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines() if line]
    created, sent, binary, first, repeat, batch, peeked, info, *_, published, key = replies
    assert created["attributes"]["visibility_timeout"] == 60
    assert len({sent["id"], binary["id"], first["id"]}) == 3
    assert first == repeat
    assert len(batch["results"]) == 2
    assert [message["encoding"] for message in peeked["messages"]] == ["base64", "utf-8"]
    assert (info["counts"]["active"], info["counts"]["delayed"]) == (3, 1)
    assert published["matched"] == 1
    assert (key["key"]["roles"], key["key"]["names"]) == (["send"], ["orders*"])
    assert (await rest.rig.server.bodies("orders"))[-1] == b"on sale"


def test_the_table_of_the_page_has_every_operation():
    rows = re.findall(r"^\| `(\w+)` \| `(\w+) (\S+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)

    assert rows == [(entry.name, entry.method, entry.path, entry.summary) for entry in OPERATIONS]
