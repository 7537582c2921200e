# SPDX-License-Identifier: Apache-2.0
"""Every example runs, in an empty folder, and prints what its first lines say it prints."""

import ast
import doctest
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from consumer_groups import consumer_group
from message_store import ManualClock
from tests.helpers.tiers import with_examples
from tests.source_laws import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def promised_output(example: Path) -> str:
    """The block below ``Prints::`` at the end of its docstring."""
    purpose = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
    _, mark, block = purpose.partition("Prints::\n")
    assert mark, f"{example.name} does not say what it prints"
    return textwrap.dedent(block).strip()


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize(
    "example",
    with_examples(EXAMPLES, [ROOT / "examples" / "order_timeout.py"]),
    ids=lambda path: path.stem,
)
def test_an_example_prints_what_it_promises(example: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", example],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    same = doctest.OutputChecker().check_output
    expected, printed = promised_output(example) + "\n", run.stdout.strip() + "\n"
    assert same(expected, printed, doctest.ELLIPSIS), printed


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_a_screen(example: Path) -> None:
    assert example.read_text(encoding="utf-8").count("\n") <= 60


KILLED_IN_A_HANDLER = """
import os, runpy, signal, sys

def print_or_die(text, left=iter(range(int(sys.argv[2])))):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    print(text, flush=True)

runpy.run_path(sys.argv[1], {"print": print_or_die}, "__main__")
"""


@pytest.mark.check
def test_a_repeated_job_that_is_killed_in_its_work_is_done_by_the_next_process(
    tmp_path: Path,
) -> None:
    """Each process does one more run than the one before it, and is killed in the next."""
    example = ROOT / "examples" / "repeated_jobs.py"
    done: list[str] = []
    for runs, expected in ((0, -9), (1, -9), (2, -9), (9, 0)):
        run = subprocess.run(
            [sys.executable, "-c", KILLED_IN_A_HANDLER, example, str(runs)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert run.returncode == expected, run.stderr
        done += run.stdout.split("\n")[:-1]
    assert done == promised_output(example).split("\n")


@pytest.mark.check
def test_a_timeout_in_whose_handler_the_process_was_killed_is_received_by_the_next(
    tmp_path: Path,
) -> None:
    """The kill comes where the first order is cancelled; what was printed before are two lines."""
    from legacy_levels import LevelStore

    run = subprocess.run(
        [sys.executable, "-c", KILLED_IN_A_HANDLER, ROOT / "examples" / "order_timeout.py", "2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == -9, run.stderr
    half_an_hour_later_ms = 1_767_308_400_000 + 30 * 60_000
    clock = ManualClock(half_an_hour_later_ms)
    with LevelStore.open(tmp_path / "timeouts", clock=clock) as store:
        received = consumer_group(store, "orders").receive("timeouts")
    assert [timeout.keys for timeout in received] == [("1",), ("3",)]
