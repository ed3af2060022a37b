"""Modules that an import of the client loads."""

import subprocess
import sys

import pytest

import cmqd_client


def test_the_client_needs_the_standard_library_and_msgspec_only() -> None:
    script = """
import sys
before = set(sys.modules)
import cmqd_client
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(top for top in tops if top not in sys.stdlib_module_names))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    # msgspec looks for typing_extensions and does without.
    own = {"cmqd_client", "cmqd_protocol", "cmqd_reading", "cmqd_types"}
    assert set(ran.stdout.split()) - {"typing_extensions"} == own | {"msgspec"}


def test_the_package_exports_only_names_of_daily_use() -> None:
    exported = cmqd_client.__all__

    assert len(exported) <= 50
    assert sorted(set(exported)) == sorted(exported)
    exported_types = [value for name in exported if isinstance(value := getattr(cmqd_client, name), type)]
    error_names = [exported_type.__name__ for exported_type in exported_types if issubclass(exported_type, Exception)]
    assert error_names == ["CmqError", "Reject", "Retry"]  # the latter two are raised by handlers


@pytest.mark.parametrize(
    ("module", "library", "text"),
    [
        ("cmqd_client.sync", "anyio", "cmqd_client.sync needs anyio: pip install 'cmqd[sync]'"),
        ("cmqd_kombu", "kombu", "cmqd_kombu needs kombu: pip install 'cmqd[celery]'"),
        ("cmqd_taskiq", "taskiq", "cmqd_taskiq needs taskiq: pip install 'cmqd[taskiq]'"),
        ("cmqd_faststream", "faststream", "cmqd_faststream needs faststream: pip install 'cmqd[faststream]'"),
        ("cmqd.testing", "structlog", "cmqd.testing needs structlog: pip install 'cmqd[server]'"),
    ],
)
def test_an_import_without_its_extra_names_the_extra(module: str, library: str, text: str) -> None:
    program = f"import sys; sys.modules[{library!r}] = None; import {module}"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ran.stderr.splitlines()[-1] == f"ModuleNotFoundError: {text}"
    assert "During handling" not in ran.stderr


@pytest.mark.parametrize("library", ["aiohttp", "cyclopts", "uvloop", "prometheus_client"])
def test_the_command_of_the_gateway_names_its_extra(library: str) -> None:
    program = f"import sys; sys.modules[{library!r}] = None; from cmqd_gateway.__main__ import main; sys.exit(main([]))"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    needs = "is not installed; the gateway needs: pip install 'cmqd[gateway]'\n"
    assert (ran.returncode, ran.stderr) == (2, f"cmqd-gateway: {library} {needs}")
