"""The client's public interface is typed completely, from the view of its users."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_every_public_symbol_of_the_client_has_a_known_type(tmp_path: Path) -> None:
    # From a different folder: in this folder the project's own configuration would hide the installed package.
    folder = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(folder.parent)}
    environment["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"
    ran = subprocess.run(
        [sys.executable, "-m", "pyright", "--verifytypes", "cmqd_client", "--ignoreexternal", "--outputjson"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(ran.stdout)["typeCompleteness"]
    unknown = [symbol["name"] for symbol in found["symbols"] if symbol["isExported"] and not symbol["isTypeKnown"]]
    assert not unknown
    assert found["completenessScore"] == 1
