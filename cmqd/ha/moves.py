"""The commands ``cmqd ha import`` and ``cmqd ha export`` over the engine of the settings, with their exit codes."""

import sys
from collections.abc import Callable

from msgspec import structs

from cmqd.engine.interface import Engine
from cmqd.exit_codes import ExitCode
from cmqd.ha.exporting import export_folder
from cmqd.ha.importing import import_folder
from cmqd.log.log_errors import LogError
from cmqd.server.access.accounts_file import AccountsFileError
from cmqd.settings import Settings
from cmqd.storage.loop_side.process_log import StorageProcessLog
from cmqd.storage.redundancy.engine_choice import open_engine
from cmqd.storage.storage_settings import StorageSettings
from cmqd_segment.checkpoint_file import CheckpointError
from cmqd_segment.manifest import ManifestError
from cmqd_segment.newer import NewerFormatError


def run_import(settings: Settings) -> int:
    """Import the folder of the settings; return the exit code."""
    return _run(settings, lambda engine: import_folder(settings.data, engine, settings.shard, _say))


def run_export(settings: Settings) -> int:
    """Export the log of the engine into the folder of the settings; return the exit code."""
    storage = structs.replace(StorageSettings.of(settings), lock_wait_ms=0)

    def open_log() -> StorageProcessLog:
        return StorageProcessLog(storage)

    return _run(settings, lambda engine: export_folder(settings.data, engine, settings.shard, open_log, _say))


def _run(settings: Settings, move: Callable[[Engine], None]) -> int:
    waits = _Waits()
    try:
        engine = waits.engine = open_engine(StorageSettings.of(settings), waits)
        assert engine is not None, "the commands set redundancy"
        try:
            move(engine)
        finally:
            engine.close()
    except FileNotFoundError as missing:
        print(f"cmqd: {settings.data} is not a data folder: {missing.filename} is missing", file=sys.stderr)
    except (LogError, ManifestError, NewerFormatError, CheckpointError, AccountsFileError, OSError) as refusal:
        print(f"cmqd: {refusal}", file=sys.stderr)
    except KeyboardInterrupt:
        print("cmqd: interrupted; repeat the command", file=sys.stderr)
    else:
        return ExitCode.OK
    return ExitCode.CANNOT_OPEN


class _Waits:
    """Prints the reason of a wait for the engine. A command waits as long as a broker does: Ctrl-C ends the wait."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self._told = ""

    def __call__(self) -> bool:
        """Print the reason of a wait, unless it was the last text; never stop the engine."""
        waiting_for = "" if self.engine is None else self.engine.waiting_for
        if waiting_for not in ("", self._told):
            self._told = waiting_for
            print(f"cmqd: waits for {waiting_for}", file=sys.stderr, flush=True)
        return False


def _say(line: str) -> None:
    print(line, flush=True)
