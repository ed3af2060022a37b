"""The command ``cmqd``: settings from file, environment and flags, then the server, or a command on its folder."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from cmqd import __version__
from cmqd.child_python import child_python
from cmqd.exit_codes import ExitCode
from cmqd.ha import commands as ha
from cmqd.settings import SETTINGS, SettingError, SettingInfo, Settings, ignored_variables, load
from cmqd_logs.quick_start import import_structlog
from cmqd_types.units import DURATION, SIZE

SERVE_DESCRIPTION = """Run the broker until SIGTERM. SIGHUP reads the settings and the TLS files again.

Each flag is also a setting of the TOML file and of the environment (--max-connections, max_connections,
CMQD_MAX_CONNECTIONS); flags win over environment, that over the file. A TIME is a number with ms, s, m, h, d or w,
or milliseconds without a unit; a SIZE is a number with KiB, MiB, GiB, TiB, kB, MB, GB or TB, or bytes without a unit.
"""

_BACKUP_COMMANDS = {
    "backup": "copy the log of a data folder to a folder or URL, also while its broker runs; list a backup",
    "restore": "make a data folder from a backup, as of its last row or of a time",
    "clone": "make a data folder with the messages that wait in another one, disarmed, with masks for tests",
}
"""Commands of the program ``cmqd_backup``, which is a client of the broker: this package imports no module of it."""
_PLATFORMS = {"darwin": "macOS", "win32": "Windows", "cygwin": "Cygwin"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    open_standard_streams()
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in _BACKUP_COMMANDS:
        return _run_backup_program(given)
    parser = _parser()
    chosen = parser.parse_args(given)
    flags: dict[str, Any] = {name: getattr(chosen, name, None) for name in SETTINGS}

    def read_settings() -> Settings:
        return load(file=chosen.config, flags=flags)

    try:
        settings = read_settings()
    except SettingError as refusal:
        print(f"cmqd: {refusal}", file=sys.stderr)
        return ExitCode.USAGE
    ignored = ignored_variables(os.environ)
    if chosen.command == "config":
        if ignored:
            print(f"cmqd: ignored variables that container platforms set: {', '.join(ignored)}", file=sys.stderr)
        print(effective_settings(settings))
        return 0
    if sys.platform != "linux":
        print(f"cmqd: {platform_refusal(sys.platform)}", file=sys.stderr)
        return ExitCode.USAGE
    try:
        if chosen.command == "accounts":
            return _accounts(chosen, settings.data)
        if chosen.command == "new-log-id":
            return _give_new_log_id(settings.data)
        if chosen.command == "ha":
            return ha.run(chosen, settings)
        import_structlog()
        from cmqd.server.process.daemon import run_server
        from cmqd.server.process.http_gateway import checked_flags, missing_library
    except ModuleNotFoundError as missing:
        print(f"cmqd: {missing.name} is not installed; the server needs: pip install 'cmqd[server]'", file=sys.stderr)
        return ExitCode.USAGE
    if settings.http and (missing_name := missing_library()) is not None:
        print(f"cmqd: {missing_name} is not installed; --http needs: pip install 'cmqd[gateway]'", file=sys.stderr)
        return ExitCode.USAGE
    try:
        gateway_flags = checked_flags(settings)
    except SettingError as refusal:
        print(f"cmqd: {refusal}", file=sys.stderr)
        return ExitCode.USAGE
    return int(run_server(settings, read_settings, ignored, gateway_flags))


def _run_backup_program(arguments: list[str]) -> int:
    """Become the program ``cmqd_backup``, with the same arguments; return only on a platform without it."""
    if sys.platform != "linux":
        print(f"cmqd: {platform_refusal(sys.platform)}", file=sys.stderr)
        return ExitCode.USAGE
    command = [*child_python(), "-m", "cmqd_backup", *arguments]
    sys.stdout.flush()
    os.execv(command[0], command)


def open_standard_streams() -> None:
    """Open the null device as each standard stream that this process was started without (``cmqd serve >&-``).

    Otherwise a socket of the broker would get the number of the stream: lines for the operator would go to a client,
    and libuv ends a process that closes a socket of such a number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one, because the numbers below it are open. The storage process inherits
            # the stream; without that the same fault would begin there.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            # Python found no stream at its start, and left None in the place of the object.
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115, for the life of the process
            setattr(sys, name, stream)


def platform_refusal(platform: str) -> str:
    """Return why the server does not run on this system; ``cmqd config`` runs everywhere."""
    return (
        f"the server runs on Linux, not on {_PLATFORMS.get(platform, platform)}."
        " The client (cmqd_client) and the command line (cmq) run on Linux, macOS and Windows"
    )


def _accounts(chosen: argparse.Namespace, folder: Path) -> int:
    from cmqd.server.access import accounts_commands
    from cmqd.storage.folder.data_folder import locked_folder

    match chosen.accounts_command:
        case "check":
            return accounts_commands.check(folder, print)
        case "repair":
            return accounts_commands.repair(folder, print, locked_folder, from_copy=chosen.from_copy)
        case _:
            return accounts_commands.make_key(folder, print, locked_folder, chosen.account)


def _give_new_log_id(folder: Path) -> int:
    """Give the log of a cloned data folder a new id; return the exit code."""
    from cmqd.log.log_errors import LogError
    from cmqd.storage.folder import log_identity as identity

    try:
        manifest = identity.give_new_log_id(folder)
    except FileNotFoundError:
        print(f"cmqd: {folder} is not a data folder: it has no manifest", file=sys.stderr)
        return ExitCode.CANNOT_OPEN
    except (LogError, OSError) as refusal:
        print(f"cmqd: the log of {folder} keeps its id: {refusal}", file=sys.stderr)
        return ExitCode.CANNOT_OPEN
    before = manifest.former_log_ids[-1] if manifest.former_log_ids else "none"
    print(f"the log of {folder} has the id {manifest.log_id}; before: {before}")
    print("positions of streams and journals of replays with the former id are refused from now on")
    return 0


def effective_settings(settings: Settings) -> str:
    """Return the settings as a TOML file with every value, its meaning and its range."""
    lines: list[str] = []
    section = ""
    for name, value in settings.as_table().items():
        info = SETTINGS[name]
        if info.section != section:
            section = info.section
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        lines.append(f"# {info.text} ({info.allowed})")
        lines.append(f"# {name} =" if value is None else f"{name} = {_toml(value)}")
    return "\n".join(lines)


def _toml(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cmqd", description="A self-hosted message broker.")
    parser.add_argument("--version", action="version", version=f"cmqd {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the broker",
        description=SERVE_DESCRIPTION,
        epilog="\n".join(["exit codes:", *(f"  {code}  {code.meaning}" for code in ExitCode)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config = commands.add_parser("config", help="print the effective settings as a TOML file")
    _add_accounts(commands)
    _add_new_log_id(commands)
    for name, text in _BACKUP_COMMANDS.items():
        # For the list of commands alone.
        commands.add_parser(name, help=text, add_help=False)
    ha.add_commands(commands, _add_settings)
    for command in (serve, config):
        command.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
        groups: dict[str, Any] = {}
        for info in SETTINGS.values():
            if info.section not in groups:
                groups[info.section] = command.add_argument_group(info.section)
            _add_flag(groups[info.section], info)
    return parser


def _add_accounts(commands: Any) -> None:
    """Add the commands on the accounts file of a broker that is stopped."""
    accounts = commands.add_parser(
        "accounts",
        help="check or repair the accounts file of a stopped broker, or replace a lost key",
        description="The file accounts.json of the data folder holds accounts, keys and other secrets, with a checksum;"
        " accounts.json.1 is a copy, written after each change.",
    ).add_subparsers(dest="accounts_command", required=True, metavar="COMMAND")
    check = accounts.add_parser(
        "check", help="show the contents of the file and of its copy, and how they differ; changes nothing"
    )
    repair = accounts.add_parser(
        "repair",
        help="keep a file that was edited by hand: check it and write its checksum",
        description="Check a file that was edited by hand and write it again with its checksum. The content that is"
        " replaced is kept as accounts.json.old.N. The broker must be stopped.",
    )
    repair.add_argument("--from-copy", action="store_true", help="put the copy in the place of the file instead")
    key = accounts.add_parser(
        "new-key",
        help="add a key to an account and show it once",
        description="Add a key to an account, for example to admin when its key is lost, and show it once. Without"
        " accounts.json and its copy, 'new-key admin' creates a new file: earlier receipt handles are then invalid, and"
        " the other accounts have to be created again. The broker must be stopped.",
    )
    key.add_argument("account", metavar="ACCOUNT", help="name of the account, for example admin")
    for command in (check, repair, key):
        _add_settings(command, "data")


def _add_new_log_id(commands: Any) -> None:
    """Add the command on the identity of a stopped broker's log."""
    command = commands.add_parser(
        "new-log-id",
        help="give the log of a cloned data folder an id of its own",
        description="Give the log of a data folder a new id; its broker must be stopped. A copy of a folder keeps the"
        " id of the original, so that streams and replays continue with a restored backup. A clone that runs beside its"
        " original needs a new id: otherwise a stream of the original could continue with the clone.",
    )
    _add_settings(command, "data")


def _add_settings(command: argparse.ArgumentParser, *names: str) -> None:
    """Add the settings file, and the flags of these settings, to a command."""
    command.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    for name in names:
        _add_flag(command, SETTINGS[name])


def _add_flag(group: Any, info: SettingInfo) -> None:
    default = "" if info.default in (None, "") else f" (default: {info.default_text})"
    text = (info.text + default).replace("%", "%%")
    if info.kind is bool:
        group.add_argument(info.flag, action=argparse.BooleanOptionalAction, default=None, help=info.text)
    else:
        # The values are converted and checked together with those of the other sources.
        metavar = "TIME" if info.unit is DURATION else "SIZE" if info.unit is SIZE else info.kind.__name__.upper()
        group.add_argument(info.flag, metavar=metavar, default=None, help=text)


if __name__ == "__main__":
    sys.exit(main())
