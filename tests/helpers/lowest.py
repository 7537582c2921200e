# SPDX-License-Identifier: Apache-2.0
"""Runs a few tests on the lowest versions that pyproject.toml claims: `python -m
tests.helpers.lowest`. The environment is build/lowest; it is made anew when a bound changes.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PLACE: Final = ROOT / "build" / "lowest"
#: What the project does in small, its engines, its tables and its pages; no Spark is started.
SMOKE: Final = (
    "tests/test_smoke.py",
    "tests/compare/report/test_report.py",
    "tests/contract/test_memory_store.py",
    "tests/migrate/test_convert_tables.py",
    "tests/migrate/report/test_html.py",
    "tests/migrate/look/test_pending.py",
    "tests/migrate/look/test_pending_search.py",
)
#: What the tests themselves stand on; ruff and mypy are pinned.
_TOOLS: Final = ("hypothesis", "pytest", "pytest-xdist")
_BOUND: Final = re.compile(r"^([A-Za-z0-9-]+)(\[[a-z,]+\])?>=([0-9.]+)")


def pins() -> list[str]:
    """Every dependency at its lower bound, such as ``attrs==23.2``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tools = project["optional-dependencies"]["dev"]
    bounds = [_BOUND.match(text) for text in (*project["dependencies"], *tools)]
    found = {bound[1]: f"{bound[1]}{bound[2] or ''}=={bound[3]}" for bound in bounds if bound}
    needed = {re.split(r"[\[<>=]", text)[0] for text in project["dependencies"]} | {*_TOOLS}
    if missing := needed - found.keys():
        raise ValueError(f"no lower bound: {', '.join(sorted(missing))}")
    return [found[name] for name in sorted(needed)]


def lowest_python() -> str | None:
    """The lowest Python that pyproject.toml claims, where this machine has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = re.match(r">=(\d+)\.(\d+)", project["requires-python"])
    assert claimed is not None
    if sys.version_info[:2] == (int(claimed[1]), int(claimed[2])):
        return sys.executable
    return shutil.which(f"python{claimed[1]}.{claimed[2]}")


def _install(python: str) -> str:
    """The environment's Python, once all is installed."""
    inside, note = PLACE / "bin" / "python", PLACE / "pins.txt"
    wanted = "\n".join(pins())
    if not note.is_file() or note.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(PLACE, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(PLACE)], check=True)
        pip = [str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *pins()], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", "."], cwd=ROOT, check=True)
        note.write_text(wanted, encoding="utf-8")
    return str(inside)


def main(more: Sequence[str]) -> int:
    """Install and run; returns pytest's exit code."""
    python = lowest_python()
    if python is None:
        sys.stderr.write("the lowest Python that pyproject.toml claims is not on this machine\n")
        return 1
    # A warning of an old library about a new one that it stands on is nobody's fault here.
    flags = ["-W", "default", "-p", "no:cacheprovider", *more]
    which = "not spark and not interop and not nightly"
    command = [_install(python), "-m", "pytest", "-m", which, *flags]
    return subprocess.run([*command, *SMOKE], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
