"""Started peers: each in a folder of its own, standing still except in its measurements."""

import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from cmqd_bench.commands.plans import Curves, Peers
from cmqd_bench.figures.results import Conditions, Gap
from cmqd_bench.machine.conditions import conditions
from cmqd_bench.peers.peer import Peer, halt, pids_of, resume


def tell(line: str) -> None:
    """Print progress; on standard error, because standard output is for the report."""
    print(line, file=sys.stderr, flush=True)


def run_conditions(plan: Curves | Peers, root: Path, body: int = 256) -> Conditions:
    """Return the conditions of a run that begins now."""
    facts = conditions(root)
    return Conditions(
        **{name: value for name, value in facts.items() if name in Conditions.__struct_fields__},  # pyright: ignore[reportArgumentType]
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        load="C generator",
        seconds=plan.seconds,
        turns=plan.turns,
        body=body,
    )


def gap_of(
    peer: Peer, reason: str, scenario: str = "", turn: int = 0, *, x: float = 0.0, is_failure: bool = False
) -> Gap:
    """Return a missing measurement as an entry of the file of results."""
    return Gap(
        scenario=scenario, peer=peer.name, build=peer.build, turn=turn, x=x, reason=reason, is_failure=is_failure
    )


def reason_of(error: Exception) -> str:
    """Return the first line of an error's text, else the name of its type."""
    return str(error).partition("\n")[0] or type(error).__name__


class RunningPeers:
    """Started peers, each in a folder of its own. All peers stand still except in their measurements."""

    def __init__(self, folder: Path) -> None:
        self.peers: list[Peer] = []
        self.ended: dict[int, str] = {}
        """Reasons of the peers that did not start again, by the identity of the object."""
        self._folder = folder
        self._starts = 0

    def start(self, peer: Peer) -> str:
        """Start a peer in a new folder; return the reason if the peer does not start."""
        self._starts += 1
        try:
            peer.start(self._folder / f"{self._starts}-{peer.name}")
            halt(pids_of(peer))
        except Exception as error:
            tell(f"{peer.name} did not start: {error}")
            self.stop(peer)
            return f"did not start: {reason_of(error)}"
        return ""

    def restart(self, peer: Peer) -> None:
        """Start a peer anew, without the data of a failed measurement."""
        self.stop(peer)
        if reason := self.start(peer):
            self.ended[id(peer)] = reason

    def stop(self, peer: Peer) -> None:
        """End the processes of a peer, whatever their state."""
        try:
            resume(pids_of(peer))
            peer.stop()
        except Exception as error:
            tell(f"{peer.name} did not stop: {error}")


@contextmanager
def started(peers: Sequence[Peer], root: Path, *, keep: bool) -> Generator[tuple[RunningPeers, list[Gap]]]:
    """Start peers and yield the peers that started, and gaps for the others; at the end all are stopped."""
    folder = Path(tempfile.mkdtemp(prefix="cmqd-peers-", dir=root))
    running = RunningPeers(folder)
    gaps: list[Gap] = []
    with ExitStack() as stack:
        if not keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for peer in peers:
            if reason := peer.missing():
                tell(f"{peer.name} is skipped: {reason}")
            else:
                # Before the start, which an interruption may leave half done.
                stack.callback(running.stop, peer)
                reason = running.start(peer)
            if reason:
                gaps.append(gap_of(peer, reason))
            else:
                running.peers.append(peer)
        yield running, gaps
