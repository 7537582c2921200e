# SPDX-License-Identifier: Apache-2.0
"""How results reach stdout: whole lines, escaped, for as long as somebody reads them."""

import io
import itertools
import json
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import click
from rich.console import Console
from rich.table import Table

from delaywheel.terminal.render.progress import say_on_stderr
from message_store.base.errors import DelayStoreError
from message_store.base.printable import json_text, printable

WIDTH_WITHOUT_TERMINAL = 100
LINES_AT_ONCE = 1_000
_BOUNDLESS = 1_000_000


class OutputError(DelayStoreError):
    """Standard output does not take the result."""


class Printer:
    """Prints lines, tables and JSON.

    A reader that has seen enough (``| head``) is no failure: what else would be printed is dropped,
    and the command ends as its work did. Raises OutputError for any other refusal of stdout.
    """

    def __init__(self, *, as_json: bool, is_quiet: bool) -> None:
        self.as_json = as_json
        self._is_quiet = is_quiet
        self.has_reader = True

    def warn(self, sentence: str) -> None:
        """Something that is not right, on stderr."""
        say_on_stderr(f"warning: {printable(sentence)}")

    def _print_json(self, value: Any) -> None:
        self._print(self._json(value, indent=1))

    def _json(self, value: Any, *, indent: int | None = None) -> str:
        """JSON in ASCII alone where stdout could not take anything else."""
        if _is_utf8(sys.stdout):
            return json_text(value, indent=indent)
        return json.dumps(value, indent=indent)

    def _say(self, line: str) -> None:
        self._print(printable(line))

    def _print(self, line: str) -> None:
        if not self.has_reader:
            return
        try:
            click.echo(line)
        except OSError as error:
            # What is left in its buffer must not fail once more when the program ends.
            sys.stdout = io.StringIO()
            self.has_reader = False
            if not isinstance(error, BrokenPipeError):
                what = f"standard output cannot be written: {error.strerror}"
                raise OutputError(what) from error

    def _print_lines(self, lines: Iterable[str]) -> None:
        """Many lines, some at a time: each print is a call of the system."""
        left = iter(lines)
        while self.has_reader and (some := list(itertools.islice(left, LINES_AT_ONCE))):
            self._print("\n".join(some))

    def _say_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(line)

    def _print_table(self, table: Table) -> None:
        if table.row_count:
            width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
            console = Console(file=sys.stdout, width=width, highlight=False, markup=False)
            _make_fit(console, table)
            with console.capture() as drawn:
                console.print(table)
            self._print(drawn.get().removesuffix("\n"))


def _is_utf8(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("_", "-") in ("utf-8", "utf8")


def _make_fit(console: Console, table: Table) -> None:
    """Break the headings of a wide table, else widen the console: half a number is a wrong one."""
    if _whole_width(console, table) > console.width:
        for column in table.columns:
            column.header = str(column.header).replace(" ", "\n")
    console.width = max(console.width, _whole_width(console, table))


def _whole_width(console: Console, table: Table) -> int:
    boundless = console.options.update(max_width=_BOUNDLESS)
    return console.measure(table, options=boundless).maximum
