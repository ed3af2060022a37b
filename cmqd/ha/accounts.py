"""``cmqd ha accounts``: the accounts of a log in an engine, as an accounts file: for backups and restores."""

from pathlib import Path

from msgspec import UNSET, structs

from cmqd.engine.database import Database
from cmqd.exit_codes import ExitCode
from cmqd.ha.log_state import NoState, newest_primary
from cmqd.ha.output import Output
from cmqd.server.access.accounts_file import AccountsFileError, encode
from cmqd.server.access.private_files import write_private
from cmqd.server.redundancy.engine_accounts import decode_accounts


def write_accounts(database: Database, shard: int, file: Path, output: Output) -> ExitCode:
    """Write the accounts of a shard's log into a file for its owner alone; CANNOT_OPEN if they cannot be read."""
    try:
        with newest_primary(database) as session:
            stored = session.accounts()
        if stored is None:
            raise NoState(f"the engine has no accounts of shard {shard}")
        # The key of the gateways belongs to the pair of brokers, and opens nothing elsewhere.
        write_private(file, encode(structs.replace(decode_accounts(stored), gateway_key=UNSET)))
    except (NoState, AccountsFileError, OSError) as reason:
        output.refuse(str(reason), shard=shard)
        return ExitCode.CANNOT_OPEN
    output.document({"ok": True, "shard": shard, "file": str(file)})
    output.line(f"the accounts of shard {shard} are in {file}: keys and other secrets, in the clear")
    return ExitCode.OK
