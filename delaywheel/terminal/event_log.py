# SPDX-License-Identifier: Apache-2.0
"""The log of a loop on standard error: one JSON object a line for each event."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from message_store.base.printable import iso_time

LOGGERS = ("message_store", "consumer_groups", "delaywheel")


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
