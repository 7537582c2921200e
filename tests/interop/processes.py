# SPDX-License-Identifier: Apache-2.0
"""Child processes that never outlive the tests: own group, bounded waits, killed by pid."""

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_LIVING: Final[set["subprocess.Popen[bytes]"]] = set()


def _die_with_the_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a process whose output goes to `log` and whose input stays open until it ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=log.parent,
            start_new_session=True,
            preexec_fn=_die_with_the_parent,
        )
    _LIVING.add(process)
    return process


def terminate(process: "subprocess.Popen[bytes]", patience_s: float) -> bool:
    """Ask a process to end; True if it did so by itself in time, else it was killed."""
    process.terminate()
    try:
        process.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        kill(process)
        return False
    _forget(process)
    return True


def kill(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its group at once, as a crash does."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _forget(process)


def wait(process: "subprocess.Popen[bytes]", patience_s: float) -> int:
    """Wait for a process that ends by itself, and return its exit code.

    Raises:
        TimeoutError: it did not end; it has been killed.
    """
    try:
        code = process.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        kill(process)
        raise TimeoutError(f"{process.args!r} did not end within {patience_s:.0f} s") from None
    _forget(process)
    return code


def tail(log: Path, lines: int = 40) -> str:
    """Return the end of a log, without the dozens of lines in which Logback describes itself."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    said = [line for line in text.splitlines() if "|-INFO" not in line]
    return "\n".join(said[-lines:])


def _forget(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    _LIVING.discard(process)


@atexit.register
def _kill_the_rest() -> None:
    for process in list(_LIVING):
        kill(process)
