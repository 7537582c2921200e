# SPDX-License-Identifier: Apache-2.0
"""No process of delaywheel imports modules from the working directory, whatever they are called:
an operator works in directories of others, and often as root.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_TRAP = "from pathlib import Path\nPath({found!r}).write_text(__file__)\nraise SystemExit(99)\n"
_INSTALLED = ("attr", "attrs", "numba", "numpy", "pandas", "pyarrow")


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A directory with a module of every name that delaywheel imports; each leaves the file `found`
    when it is executed.
    """
    place = tmp_path / "here"
    place.mkdir()
    ours = [path.parent.name for path in ROOT.glob("*/__init__.py")]
    assert {"migrate", "compare", "message_store"} <= {*ours}
    for name in (*ours, *_INSTALLED, *(path.stem for path in ROOT.glob("*.py"))):
        (place / f"{name}.py").write_text(_TRAP.format(found=str(place / "found")))
    return place


def run_in(place: Path, *arguments: str) -> None:
    """Run a verb in a directory, as an installed command: Python's own safe path is not set."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = place / "found"
    assert not found.exists(), f"{found.read_text()} was executed"
    assert done.returncode == 0, done.stderr


def test_python_by_default_does_execute_a_module_of_the_working_directory(
    trapped: Path,
) -> None:
    done = subprocess.run([sys.executable, "-c", "import migrate"], cwd=trapped)
    assert done.returncode == 99
    assert (trapped / "found").exists()


@pytest.mark.check
@pytest.mark.spark
def test_spark_workers_import_nothing_from_the_working_directory(
    tmp_path: Path, trapped: Path
) -> None:
    run_in(trapped, "demo", "--directory", str(tmp_path / "demo"), "--master", "local[1]")


@pytest.mark.check
def test_the_engines_of_a_race_import_nothing_from_the_working_directory(trapped: Path) -> None:
    run_in(trapped, "compare", "--engines", "memory,wheel", "--messages", "20")
