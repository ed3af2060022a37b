"""Modules that an import of the client loads."""

import subprocess
import sys

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
    assert set(ran.stdout.split()) - {"typing_extensions"} == {"cmqd_client", "cmqd_protocol", "cmqd_types", "msgspec"}


def test_the_package_exports_only_names_of_daily_use() -> None:
    exported = cmqd_client.__all__

    assert len(exported) <= 50
    assert sorted(set(exported)) == sorted(exported)
    exported_types = [value for name in exported if isinstance(value := getattr(cmqd_client, name), type)]
    error_names = [exported_type.__name__ for exported_type in exported_types if issubclass(exported_type, Exception)]
    assert error_names == ["CmqError", "Reject", "Retry"]  # the latter two are raised by handlers
