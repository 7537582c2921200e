# SPDX-License-Identifier: Apache-2.0
"""What ``run`` and ``consume`` tell while they run: figures for Prometheus, and a log of events."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from delaywheel.terminal.options.engine import Engine
from delaywheel.terminal.options.types import ADDRESS, all_of
from delaywheel.terminal.verb import loading
from message_store.base.printable import iso_time

if TYPE_CHECKING:
    from consumer_groups import GroupStore
    from delaywheel.terminal.render.output import Output

_LOG = logging.getLogger(__name__)
LOGGERS = ("message_store", "consumer_groups", "delaywheel")

loop_options = all_of(
    click.option(
        "--metrics",
        "address",
        type=ADDRESS,
        help="Serve figures for Prometheus meanwhile, at http://HOST:PORT/metrics. A port alone is"
        " one of 127.0.0.1; 0 takes a free one.",
    ),
    click.option(
        "--log-events",
        is_flag=True,
        help="Log the events of the loop to stderr, one JSON object a line.",
    ),
)
"""The flags that say what a loop tells."""


@contextmanager
def told_loop(
    output: "Output",
    store: Path,
    engine: Engine,
    *,
    address: tuple[str, int] | None,
    log_events: bool,
) -> Iterator[None]:
    """Around a loop: serve its figures and log its events, as far as that is asked for.

    Raises TargetError for an address that cannot be had.
    """
    with ExitStack() as held:
        held.enter_context(logged_events(is_wanted=log_events))
        if address is not None:
            with loading(output):
                from delaywheel.metrics import StoreMetrics
                from delaywheel.metrics_server import serving
            figures = StoreMetrics(cast("GroupStore", engine))
            port = held.enter_context(serving(figures.metrics, *address))
            output.serving(f"http://{address[0]}:{port}/metrics")
        _LOG.info("started", extra={"facts": {"store": str(store)}})
        try:
            yield
        finally:
            _LOG.info("stopped")


class JsonLines(logging.Formatter):
    """A log record as one line: time, level, event, the logger, and the facts of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": iso_time(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return json.dumps(line)


@contextmanager
def logged_events(*, is_wanted: bool) -> Iterator[None]:
    """Write the events of the loop to standard error meanwhile, if so wanted."""
    if not is_wanted:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
