"""kill -9 at each point of a commit's way: of the loop process, of the storage process, and of both.

Every row that was reported durable is there afterwards, at most the batch under way is there besides, and the folder is
free for the next broker.
"""

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.storage.log_rig import ForkedPlace, LogRig

pytestmark = pytest.mark.system

STORAGE = """
    import os, signal, sys
    from cmqd.storage.writing import commit_socket
    from cmqd.storage.segments import segment
    from cmqd.storage.writing import writer
    from cmqd.storage.__main__ import prepare_process
    from cmqd.storage.service import main

    point, whose, *arguments = sys.argv[1:]
    loop_process = os.getppid()
    commits = 0

    def passed(name):
        global commits
        if name != point:
            return
        commits += 1
        if commits == 12:
            if whose != "storage":
                os.kill(loop_process, signal.SIGKILL)
            if whose != "loop":
                os.kill(os.getpid(), signal.SIGKILL)

    def strike_before(owner, method, name):
        original = getattr(owner, method)
        def changed(*args):
            passed(name)
            return original(*args)
        setattr(owner, method, changed)

    def strike_after(owner, method, name):
        original = getattr(owner, method)
        def changed(*args):
            result = original(*args)
            passed(name)
            return result
        setattr(owner, method, changed)

    strike_before(writer.Writer, "make_durable", "received")
    strike_after(segment.WritableSegment, "insert", "in the file")
    strike_after(segment.WritableSegment, "committed", "counted")
    strike_after(commit_socket.CommitSocket, "answer", "answered")
    prepare_process()
    sys.exit(main(arguments))
"""

LOOP = """
    import asyncio, os, subprocess, sys
    from pathlib import Path
    import signal
    from cmqd.log.log_errors import LogFailed
    from cmqd.storage import ipc
    from cmqd.storage.loop_side.commit_switch import CommitSwitch
    from cmqd.storage.loop_side.group_commit import GroupCommit
    from cmqd.storage.loop_side.loop_commits import LoopCommits
    from cmqd.storage.loop_side.loop_connection import LoopConnection
    from cmqd.storage.loop_side.process_log import StorageProcessLog
    from cmqd.storage.segments.row_inserts import RowInserts
    from support.storage.log_rig import LogRig, settings_for
    from support.storage.loop_way import ChosenWay, is_by_loop

    folder, point, whose, storage = sys.argv[1:]
    at_switch = point.removeprefix("back: ") in ("asked", "closed", "opened", "told")
    by_loop = at_switch or point.startswith("loop: ")
    way = ChosenWay(wanted=by_loop)
    passes = 0

    def passed(name):
        global passes
        if name == point:
            passes += 1
            if passes == (1 if at_switch else 12):
                if whose != "loop":
                    os.kill(log.process_id, signal.SIGKILL)
                if whose != "storage":
                    os.kill(os.getpid(), signal.SIGKILL)

    def strike(owner, method, before, after):
        original = getattr(owner, method)
        def changed(*args, **named):
            passed(name_of(before))
            result = original(*args, **named)
            passed(name_of(after))
            return result
        setattr(owner, method, changed)

    def name_of(name):
        # A change of the loop process back to the storage process opens no file.
        return f"back: {name}" if at_switch and not way.wanted else name

    strike(RowInserts, "insert", "loop: given", "loop: in the file")
    strike(GroupCommit, "became_durable", "loop: unread", "loop: durable")
    strike(CommitSwitch, "switch", "asked", "held")
    strike(LoopConnection, "close", "open", "closed")
    strike(LoopCommits, "_change", "open", "opened")
    strike(GroupCommit, "go_on", "told", "gone on")

    def start(*sockets):
        descriptors = [each.fileno() for each in sockets]
        arguments = [sys.executable, "-c", storage, point, whose, *map(str, descriptors), str(os.getpid())]
        return subprocess.Popen(arguments, pass_fds=descriptors)

    async def main():
        global log
        log = StorageProcessLog(settings_for(Path(folder)), start, way=way)
        rig = LogRig(log)
        await rig.open()
        told = rig.log.on_durable
        def durable(lsn):
            # In one write, whatever the buffer of the output: a kill leaves no half line.
            os.write(1, b"durable %d\\n" % lsn)
            told(lsn)
        rig.log.on_durable = durable
        position = 0
        while not rig.fatal:
            if at_switch and point.startswith("back: ") and is_by_loop(log):
                way.wanted = False
            if at_switch:
                await asyncio.sleep(0)
            try:
                rig.send(1, position, 3, 2000)
                rig.log.flush()
            except LogFailed:
                break
            position += 3
            await rig.until(lambda: rig.fatal or rig.log.durable_lsn == rig.log.last_lsn)
        print("fatal", rig.fatal[0], flush=True)

    asyncio.run(main())
"""


KILLED = {
    "received": "loop storage both",
    "in the file": "loop storage both",
    "counted": "loop storage both",
    "answered": "loop storage both",
    # Steps of a commit of the loop process.
    "loop: given": "loop",
    "loop: in the file": "loop storage both",
    "loop: durable": "storage",
    # Steps of the loop process in a switch to its own commits, and in a switch back.
    "asked": "loop",
    "opened": "loop storage",
    "told": "loop storage both",
    "back: closed": "loop",
    "back: told": "loop storage both",
}
"""The processes that are killed at each step."""
LOOP_STEPS = list(KILLED)[4:]


@pytest.mark.parametrize(("point", "whose"), [(point, whose) for point in KILLED for whose in KILLED[point].split()])
async def test_a_kill_in_a_commit_loses_no_row_that_was_reported(tmp_path: Path, point: str, whose: str) -> None:
    folder = tmp_path / "data"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    arguments = [str(folder), point, whose, textwrap.dedent(STORAGE)]
    killed = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LOOP), *arguments], stdout=subprocess.PIPE, env=environment, text=True
    )
    output, _ = await asyncio.to_thread(killed.communicate)
    lines = output.splitlines()
    reported = [int(line.split()[1]) for line in lines if line.startswith("durable")]
    assert reported == list(range(1, len(reported) + 1))
    assert any(line.startswith("fatal the storage process ended unexpectedly") for line in lines) == (
        whose == "storage"
    )

    rig = LogRig(ForkedPlace(folder, lock_wait_ms=20_000).log())
    report = await rig.open()

    assert not report.numbers_jump
    lsns = [lsn for lsn, _, _ in rig.rows]
    assert lsns == list(range(1, len(lsns) + 1))
    assert len(lsns) - len(reported) in {0, 1}, "the batch under way, at most"
    if point == "received":
        # An orphaned storage process finishes the commit under way, with nothing left to answer.
        assert len(lsns) == (12 if whose == "loop" else 11)
    elif point not in ("answered", *LOOP_STEPS):
        assert (len(reported), len(lsns)) == (11, 12)
    read = 0
    while read < 3 * len(lsns):
        page, missing = await rig.page(1, [read, 3 * len(lsns) - read])
        assert (len(page) > 0, missing) == (True, [])
        read += len(page)
    await rig.log.close()
