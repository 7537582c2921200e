# SPDX-License-Identifier: Apache-2.0
"""Our own command line, run the way an operator runs it: as a process of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
_PATIENCE_S: Final = 300


def delaywheel(*arguments: object) -> Any:
    """Run one command with --json and return what it says; AssertionError unless it succeeds."""
    done = _run(*arguments, "--json")
    return json.loads(done)


def delaywheel_lines(*arguments: object) -> list[dict[str, Any]]:
    """Run one command that prints one JSON object a line."""
    return [json.loads(line) for line in _run(*arguments, "--json").splitlines()]


def delaywheel_killed_before(rename: Path, *arguments: object) -> None:
    """Run one command that is killed when it is about to rename from or to that path."""
    done = _ended("tests.interop.stopped_command", rename, *arguments)
    assert done.returncode == -signal.SIGKILL, _said(done)


def write_settings(file: Path, settings: Mapping[str, object]) -> Path:
    """Write a broker's configuration file, for --broker-conf or --target-conf."""
    lines = [f"{key}={value}\n" for key, value in settings.items()]
    file.write_text("".join(lines), encoding="utf-8")
    return file


def _run(*arguments: object) -> str:
    done = _ended("cli", *arguments)
    assert done.returncode == 0, _said(done)
    return done.stdout


def _ended(module: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )


def _said(done: "subprocess.CompletedProcess[str]") -> str:
    command = " ".join(done.args)
    return f"exit code {done.returncode}: {command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
