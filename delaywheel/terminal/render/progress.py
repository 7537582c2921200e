# SPDX-License-Identifier: Apache-2.0
"""How far a long command is, on stderr: bars on a terminal, a line now and then elsewhere."""

import sys
from contextlib import AbstractContextManager, suppress

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from message_store.base.clock import stopwatch_s

LINE_EVERY_S = 2.0
SAME_LINE_EVERY_S = 20.0
BARS_AT_ONCE = 8


def say_on_stderr(line: str) -> None:
    """A line on stderr; that nobody reads it is no reason to give up the work."""
    with suppress(OSError):
        click.echo(line, err=True)


class StageProgress(AbstractContextManager["StageProgress"]):
    """Call it with a stage's name, how much is done, and of how much; use it in a ``with`` block.

    May be called from several threads. A stage ends when all of it is done or another begins.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._stage = ""
        self._started_s = self._last_line_s = 0.0
        self._last_done = 0
        self._is_over = False
        self._task: TaskID | None = None
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=is_quiet or not self._is_terminal,
        )

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Say how far a stage is; ``total`` 0 when that is not known."""
        if self._is_quiet:
            return
        if stage != self._stage:
            self._begin(stage, total)
        if self._is_terminal:
            self._show_bar(done, total)
        else:
            self._show_line(done, total)

    def say(self, sentence: str) -> None:
        """A sentence about what is going on."""
        if self._is_quiet:
            return
        if self._is_terminal:
            self._bars.console.print(sentence, markup=False, highlight=False)
        else:
            self._line(sentence)

    def _begin(self, stage: str, total: int) -> None:
        self._stage, self._is_over, self._last_done = stage, False, 0
        self._started_s = self._last_line_s = stopwatch_s()
        if self._is_terminal:
            for task in self._bars.task_ids[: -BARS_AT_ONCE + 1]:
                self._bars.remove_task(task)  # of a run with many stores, the last few are shown
            self._task = self._bars.add_task(stage, total=total if total > 1 else None)
        else:
            self._line(f"{stage} ...")

    def _show_bar(self, done: int, total: int) -> None:
        if self._task is not None:
            is_countable = total > 1 or done >= total > 0
            self._bars.update(self._task, completed=done, total=total if is_countable else None)

    def _show_line(self, done: int, total: int) -> None:
        now_s = stopwatch_s()
        spent = f"{now_s - self._started_s:.1f} s"
        if self._is_over:
            return
        if total and done >= total:
            self._is_over = True
            self._line(f"{self._stage}: done in {spent}")
            return
        interval_s = LINE_EVERY_S if done != self._last_done else SAME_LINE_EVERY_S
        if now_s - self._last_line_s >= interval_s:
            self._last_line_s, self._last_done = now_s, done
            share = f" of {total:,} ({done * 100 // total} %)" if total else ""
            self._line(f"{self._stage}: {done:,}{share} after {spent}")

    def _line(self, text: str) -> None:
        say_on_stderr(text)

    def __enter__(self) -> "StageProgress":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
