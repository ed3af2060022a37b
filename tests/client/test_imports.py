"""What importing the client brings along."""

import subprocess
import sys


def test_the_client_needs_the_standard_library_and_msgspec_only() -> None:
    script = """
import sys
before = set(sys.modules)
import cmqd_client
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(top for top in tops if top not in sys.stdlib_module_names))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    # msgspec looks for typing_extensions and does without.
    assert set(ran.stdout.split()) - {"typing_extensions"} == {"cmqd_client", "cmqd_protocol", "msgspec"}
