# SPDX-License-Identifier: Apache-2.0
"""What ``run`` and ``consume`` tell while they run: figures for Prometheus, and a log of events."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from delaywheel.terminal.event_log import logged_events
from delaywheel.terminal.options.conversion import all_of
from delaywheel.terminal.options.engine import Engine
from delaywheel.terminal.options.types import ADDRESS
from delaywheel.terminal.verb import loading

if TYPE_CHECKING:
    from consumer_groups import GroupStore
    from delaywheel.terminal.render.output import Output

_LOG = logging.getLogger(__name__)

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
