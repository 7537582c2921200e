# SPDX-License-Identifier: Apache-2.0
"""The flags that say where the log and the queues of a source lie, if not under its root."""

from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click

from delaywheel.terminal.options.types import (
    PATHS,
    Decorator,
    Function,
    Place,
    all_of,
    errors_of_flag,
)

BROKER_CONF = "--broker-conf"
NAMES = ("commit_log", "consume_queue", "dledger_log")
"""The parameters of the flags."""

_FOR_ONE = "--commit-log, --consume-queue and --dledger-log are for one SOURCE"
_STORE = Place(path_type=Path, readable=False)

place_flags = all_of(
    click.option(
        "--commit-log",
        type=PATHS,
        metavar="DIR[,DIR]...",
        help="Where the log lies, if not in the store's commitlog/: all of its directories.",
    ),
    click.option(
        "--consume-queue",
        type=_STORE,
        metavar="DIR",
        help="Where the queues lie, if not in the store's consumequeue/.",
    ),
    click.option(
        "--dledger-log",
        type=PATHS,
        metavar="DIR[,DIR]...",
        help="Where the DLedger log lies, if not in the store's dledger-ID/data.",
    ),
)
"""For ``name_given_places``."""


def name_given_places(*sources: Path, broker_conf: Path | None, **given: Any) -> dict[str, Any]:
    """Name where the parts of these sources lie until the verb ends; gives back what flags say
    besides.

    Raises UsageError for flags that can be true of one source alone, BadParameter for a
    configuration that cannot be read or is of another store, SourceError for flags that name
    nothing.
    """
    from message_store.files.places import placed
    from migrate.settings import read_broker_conf
    from migrate.source.places import GivenPlaces, places_in

    logs, queues, entries = (given.pop(name) for name in NAMES)
    flags = GivenPlaces(commit_logs=logs or (), entries=entries or (), consume_queues=queues)
    if len(sources) != 1 and flags != GivenPlaces():
        raise click.UsageError(_FOR_ONE)
    flags.require_there()
    verb = click.get_current_context().find_root()
    with errors_of_flag(BROKER_CONF):
        conf = {} if broker_conf is None else read_broker_conf(broker_conf)
        for source in sources:
            verb.with_resource(placed(source, places_in(source, conf, flags)))
    return given


def refuse_place_flags(given: Mapping[str, Any]) -> None:
    """Raise UsageError where several sources are given, and the place of one."""
    if any(given[name] is not None for name in NAMES):
        raise click.UsageError(_FOR_ONE)


def place_options(argument: str, *, keeps_conf: bool = False, has_target: bool = True) -> Decorator:
    """The flags, and ``--broker-conf``, of a verb that reads the stores of ``argument``. The last
    of several is the target, if it ``has_target``. The verb gets ``broker_conf`` if it
    ``keeps_conf``.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def with_places(*args: Any, broker_conf: Path | None, **given: Any) -> Any:
            stores = given[argument]
            sources = stores if isinstance(stores, tuple) else (stores,)
            if sources is stores and has_target:
                sources = stores[:-1]
            given = name_given_places(*sources, broker_conf=broker_conf, **given)
            conf = {"broker_conf": broker_conf} if keeps_conf else {}
            return function(*args, **given, **conf)

        conf_option = click.option(
            BROKER_CONF,
            type=_STORE,
            help="The configuration of the store's broker: where log and queues lie.",
        )
        return conf_option(place_flags(with_places))

    return decorate
