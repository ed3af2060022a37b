"""A pair of brokers over PostgreSQL under Patroni, as ``cmqd ha init`` writes it, through the deaths of primaries.

Run by ``make test-patroni``, outside of pytest: it takes the machine for some minutes, and Patroni is installed for it
alone. ``python tests/ha/patroni_scene.py FOLDER``: the folder gets the cluster, and the user of the scene must reach it
(as root: ``nobody``, because PostgreSQL refuses root).

Each scene sends messages one after the other, with default patience but for a silent machine; no call may fail. At the
end each message that was answered is received, and none twice.
"""

import asyncio
import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cmqd_client

PROGRAMS = Path(sys.executable).parent
START_SECONDS = 120.0
QUIET_SECONDS = 5.0
"""Time of sending after the service is back."""
LIMITS_SECONDS = {
    "primary killed": 6.0,
    "leader killed": 3.0,
    "primary killed again": 6.0,
    "primary's machine silent": 30.0,
}
"""Longest wait of a call in each scene, on a machine with nothing else to do (issue 18)."""


class Cluster:
    """The processes of ``cmqd ha init``'s laptop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._run: subprocess.Popen[bytes] | None = None
        self.config = folder / "brokers" / "a.toml"

    def start(self) -> None:
        if self._user is not None:
            os.chown(self.folder.parent, self._user.pw_uid, self._user.pw_gid)
        subprocess.run(self._as_user(PROGRAMS / "cmqd", "ha", "init", "--nodes", "3", self.folder), check=True)
        self._run = subprocess.Popen(self._as_user(self.folder / "run"), env=self._environment())
        self.wait_until_whole()

    def stop(self) -> None:
        if self._run is not None:
            self._run.send_signal(signal.SIGTERM)
            self._run.wait(60)

    def wait_until_whole(self) -> None:
        """Wait until the settings are safe, and a broker leads and another one follows."""
        wait_for(lambda: self.ask("check")[0] == 0 and self.ask("status")[0] == 0, START_SECONDS, "a whole cluster")

    def ask(self, command: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            self._as_user(PROGRAMS / "cmqd", "ha", command, "--config", self.config, "--json"),
            env=self._environment(),
            capture_output=True,
            check=False,
        )
        return done.returncode, json.loads(done.stdout)

    def primary(self) -> str:
        """Return the name of the server that takes writes."""
        _, status = self.ask("status")
        port = int(status["server"].rpartition(":")[2])
        return next(
            node.stem
            for node in sorted((self.folder / "patroni").glob("*.yml"))
            if re.search(rf'^  listen: "127.0.0.1:{port}"', node.read_text(), re.MULTILINE)
        )

    def kill_primary(self) -> None:
        """SIGKILL to the postmaster of the primary. Its children end by themselves."""
        file = self.folder / f"data-{self.primary()}" / "postmaster.pid"
        os.kill(int(file.read_text().split()[0]), signal.SIGKILL)

    def silence_primary(self) -> None:
        """SIGSTOP to the primary and its manager, as if their machine were gone; SIGKILL once another one serves."""
        name = self.primary()
        postmaster = int((self.folder / f"data-{name}" / "postmaster.pid").read_text().split()[0])
        manager = int((self.folder / "pids" / name).read_text())
        frozen = [manager, postmaster, *children_of(postmaster)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: self.ask("status")[0] == 0, START_SECONDS, "new primary")
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_leader(self) -> None:
        """SIGKILL to the loop process of the leader."""
        _, status = self.ask("status")
        os.kill(int(status["leader"]["process"].partition("@")[0]), signal.SIGKILL)

    @property
    def url(self) -> str:
        """The URL of both brokers, with the key of the administrator."""
        context = tomllib.loads((self.folder / "admin.context.toml").read_text())
        url: str = next(iter(context["contexts"].values()))["url"]
        return url

    def _as_user(self, *command: str | Path) -> list[str | Path]:
        if self._user is None:
            return list(command)
        ids = [f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups"]
        return ["setpriv", *ids, *command]

    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{PROGRAMS}:{os.defpath}", "HOME": str(self.folder.parent), "LC_ALL": "C"}


def children_of(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def wait_for(is_true: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit(f"no {what} after {seconds:g} s")
        time.sleep(0.5)


async def scene(cluster: Cluster, client: cmqd_client.Client, name: str, fault: Callable[[], None]) -> list[bytes]:
    """Send through a fault; return the messages that were answered, and print the longest wait of a call."""
    queue = client.queue("scene")
    answered: list[bytes] = []
    longest_s = 0.0
    failing = asyncio.create_task(asyncio.to_thread(fault))
    recovering: asyncio.Task[None] | None = None
    number = 0
    while recovering is None or not recovering.done():
        body = f"{name} {number}".encode()
        number += 1
        begun_s = time.monotonic()
        await queue.send(body)
        longest_s = max(longest_s, time.monotonic() - begun_s)
        answered.append(body)
        if recovering is None and failing.done():
            await failing
            recovering = asyncio.create_task(asyncio.to_thread(cluster.wait_until_whole))
    await recovering
    limit_s = LIMITS_SECONDS[name]
    verdict = "" if longest_s <= limit_s else f" (limit {limit_s:g} s on a quiet machine)"
    print(f"{name}: {len(answered)} sent and answered, longest call {longest_s:.2f} s{verdict}", flush=True)
    return answered


async def scenes(cluster: Cluster) -> None:
    sent: list[bytes] = []
    async with cmqd_client.connect(cluster.url) as client:
        queue = await client.create_queue("scene")
        sent += await scene(cluster, client, "primary killed", cluster.kill_primary)
        sent += await scene(cluster, client, "leader killed", cluster.kill_leader)
        sent += await scene(cluster, client, "primary killed again", cluster.kill_primary)
        async with cmqd_client.connect(cluster.url, patience=60) as patient:
            sent += await scene(cluster, patient, "primary's machine silent", cluster.silence_primary)
        received: list[bytes] = []
        while messages := await queue.receive(max_messages=16):
            received += [message.body for message in messages]
            for message in messages:
                await message.delete()
    lost, twice = set(sent) - set(received), len(received) - len(set(received))
    print(f"{len(sent)} answered, {len(received)} received: {len(lost)} lost, {twice} twice")
    if lost or twice:
        raise SystemExit(1)


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True)
    cluster = Cluster(folder / "ha")
    begun_s = time.monotonic()
    try:
        cluster.start()
        print(f"three servers and two brokers after {time.monotonic() - begun_s:.1f} s", flush=True)
        asyncio.run(scenes(cluster))
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
