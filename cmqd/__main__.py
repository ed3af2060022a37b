"""The command ``cmqd``: settings from file, environment and flags, then the server; nothing else happens here."""

import argparse
import sys
from pathlib import Path
from typing import Any

from cmqd import __version__
from cmqd.settings import SETTINGS, SettingError, SettingInfo, Settings, load

EXIT_CODES = """exit codes:
  0  drained after SIGTERM or SIGINT
  1  an internal error; the log says which
  2  a flag or setting is wrong
  3  the storage failed (I/O error, failed fsync, storage process gone)
  4  the data folder is in use, damaged, or of a newer version
  5  the address is taken, or the TLS files are unusable
  6  draining was not over in time (nothing acknowledged is lost)
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    flags: dict[str, Any] = {name: getattr(chosen, name, None) for name in SETTINGS}
    try:
        settings = load(file=chosen.config, flags=flags)
    except SettingError as refusal:
        print(f"cmqd: {refusal}", file=sys.stderr)
        return 2
    if chosen.command == "config":
        print(effective_settings(settings))
        return 0
    try:
        from cmqd.server.daemon import run_server
    except ModuleNotFoundError as missing:
        print(f"cmqd: {missing.name} is not installed; the server needs: pip install 'cmqd[server]'", file=sys.stderr)
        return 2
    return int(run_server(settings))


def effective_settings(settings: Settings) -> str:
    """The settings as a TOML file with every value, its meaning and its range."""
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
        description="Run the broker until SIGTERM. Each flag is also a setting of the TOML file and of the environment"
        " (--max-connections, max_connections, CMQD_MAX_CONNECTIONS); flags win over environment, that over the file.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config = commands.add_parser("config", help="print the effective settings as a TOML file")
    for command in (serve, config):
        command.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
        groups: dict[str, Any] = {}
        for info in SETTINGS.values():
            if info.section not in groups:
                groups[info.section] = command.add_argument_group(info.section)
            _add_flag(groups[info.section], info)
    return parser


def _add_flag(group: Any, info: SettingInfo) -> None:
    default = "" if info.default is None else f" (default: {info.default})"
    text = (info.text + default).replace("%", "%%")
    if info.kind is bool:
        group.add_argument(info.flag, action=argparse.BooleanOptionalAction, default=None, help=info.text)
    else:
        # The values are converted and checked together with those of the other sources.
        group.add_argument(info.flag, metavar=info.kind.__name__.upper(), default=None, help=text)


if __name__ == "__main__":
    sys.exit(main())
