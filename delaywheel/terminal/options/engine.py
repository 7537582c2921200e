# SPDX-License-Identifier: Apache-2.0
"""Opens a store's engine as the flags ask for it: which one, which clock, which settings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from warnings import catch_warnings, simplefilter

import click

from delaywheel import engine_class
from delaywheel.terminal.options.conversion import (
    PRECISIONS,
    STORE,
    acting_option,
    given_level_table,
)
from delaywheel.terminal.options.places import BROKER_CONF
from delaywheel.terminal.options.types import DURATION, LEVEL_TABLE, all_of, errors_of_flag
from delaywheel.terminal.verb import loading
from message_store.base.clock import Clock, ManualClock, SystemClock
from message_store.base.errors import OptionsError, OtherEngineWarning, PrecisionError
from message_store.files.small_files import is_ordinary_file
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.interface.delay_store import DelayStore, Finding, Severity
from message_store.interface.promise_rules import BEYOND_MAX
from message_store.reading.engine_choice import (
    ENGINE_NAMES,
    EngineName,
    choose_engine,
    engines_in,
    require_engine,
    takes_over,
)
from message_store.writing.settings import StoreSettings

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output
    from message_store.writing.store import LiveStore

DEFAULT_MAX_DELAY_S = 259_200
NO_LIMITS: Mapping[str, Any] = MappingProxyType({})
DEFAULT_SLOT_MS = 1_000
TO_THE_MILLISECOND = "1"
ENGINE_FLAGS = ("engine", "precision_ms", "level_table", "broker_conf", "dialect", "now_ms")
LIMIT_FLAGS = ("max_delay_ms", "beyond_max", "start_deliver_time_alias")


class Engine(DelayStore, Protocol):
    """What all engines are beyond the interface: stores of a level table, on a log."""

    @property
    def levels(self) -> DelayLevels:
        """What ``AtLevel`` means."""

    @property
    def live(self) -> "LiveStore":
        """The log and the queues that it stands on."""

    def undelivered(self) -> list[Finding]:
        """What was due and could not be delivered."""

    def found_at_opening(self) -> list[Finding]:
        """What was lost, or rebuilt, when the store was opened."""


engine_options = all_of(
    click.option(
        "--engine",
        type=click.Choice(ENGINE_NAMES),
        help="Engine to use. Required for a new store, and for a store with data of two engines."
        " Opening a wheel with hierarchy, or the reverse, converts it.",
    ),
    click.option(
        "--precision-ms",
        type=click.Choice([TO_THE_MILLISECOND, *PRECISIONS]),
        help="Slot width in milliseconds; it must match an existing store. 1 is only available with"
        " --engine hierarchy.",
    ),
    click.option(
        "--level-table",
        type=LEVEL_TABLE,
        help='What the levels mean, unless RocketMQ\'s own; such as "1s 5s 10s".',
    ),
    click.option(
        BROKER_CONF,
        type=STORE,
        help="A broker's configuration file, for its messageDelayLevel, timerPrecisionMs,"
        " timerRollWindowSlot, timerMaxDelaySec, sizes of files, fileReservedTime and brokerName.",
    ),
    click.option(
        "--dialect",
        type=click.Choice([dialect.value for dialect in Dialect]),
        help="RocketMQ version whose file format to write. Default: 4.9 for a levels store that no"
        " 5.x broker has used, otherwise 5.5.",
    ),
    acting_option,
)
"""The flags of every verb that opens an engine, for ``opened``."""

limit_options = all_of(
    click.option(
        "--max-delay",
        "max_delay_ms",
        type=DURATION,
        help="The longest delay. Default: 3d on a wheel, 40d on a hierarchical wheel, the longest"
        " of the levels, the retention of a time index. RocketMQ 5.0's manual says 24h.",
    ),
    click.option(
        "--beyond-max",
        type=click.Choice(BEYOND_MAX),
        help="What becomes of a longer delay: refused, as brokers do (the default), or delivered at"
        " once, as the manual of RocketMQ 5.0 says.",
    ),
    click.option(
        "--start-deliver-time",
        "start_deliver_time_alias",
        is_flag=True,
        help="Take the property __STARTDELIVERTIME for a due time. Brokers ignore it.",
    ),
)
"""The flags of a verb that stores messages: which due times are taken."""


@contextmanager
def opened(
    output: "Output",
    path: Path,
    *,
    engine: EngineName | None,
    now_ms: int | None,
    may_be_new: bool = False,
    broker_name: str | None = None,
    limits: Mapping[str, Any] = NO_LIMITS,
    **settings: Any,
) -> Iterator[tuple[Engine, Clock]]:
    """The engine of a store, and the clock that it goes by; closed at the end of the block.

    ``broker_name`` is what the store is called where no broker's configuration says it. ``limits``
    are those of ``LIMIT_FLAGS`` that were given.
    A second engine with messages in the same directory is warned of, because they stay there. So is
    a change of the engine, which may move due times; and what the opening found lost, or rebuilt.
    A new store in which nothing could be stored is taken away again.
    """
    with loading(output):
        from migrate.report.finished_target import refuse_unfinished
    root = StoreRoot(path)
    refuse_unfinished(root)
    chosen = choose_engine(root, engine, may_be_new=may_be_new)
    require_engine(root, chosen)
    how = _settings(chosen, **settings)
    if broker_name is not None and "settings" not in how:
        how["settings"] = StoreSettings(broker_name=broker_name)
    how |= {name: value for name, value in limits.items() if value not in (None, False)}
    with loading(output):
        from migrate.look.elsewhere import left_alone
    for sentence in left_alone(root, chosen, SystemClock().now_ms() if now_ms is None else now_ms):
        output.warn(sentence)
    is_wheel_cut = chosen == "wheel" and _has_cut_wheel(root)
    changes = _change_of_engine(root, chosen, how.get("precision_ms"))
    clock = SystemClock() if now_ms is None else ManualClock(now_ms)
    with root.new_or_nothing():
        with loading(output), _precision_told(), catch_warnings():
            simplefilter("ignore", OtherEngineWarning)  # said already, and how many
            Store = engine_class(chosen)
            store: Engine = Store.open(path, clock=clock, **how)
        with store:
            if changes is not None:
                output.warn(f"{path}: {changes}")
            if is_wheel_cut:
                output.warn(f"{root.timer_wheel}: had the wrong length; rebuilt from the timer log")
            for found in store.found_at_opening():
                if found.severity is not Severity.INFO:
                    output.warn(f"{path}: {found.where}: {found.problem}; {found.effect}")
            yield store, clock


@contextmanager
def _precision_told() -> Iterator[None]:
    """Turn a PrecisionError into an OptionsError that names the flags."""
    try:
        yield
    except PrecisionError as error:
        raise OptionsError(
            f"{error.where}: messages wait on a wheel with slots of {error.kept_ms} ms, not"
            f" {error.asked_ms}: give --precision-ms {error.kept_ms}, or the {BROKER_CONF} of its"
            f" own broker (timerPrecisionMs={error.kept_ms})"
        ) from error


def _has_cut_wheel(root: StoreRoot) -> bool:
    """Whether the wheel's file is one on which no broker starts; an empty one is no wheel yet, and
    the sentence of a hierarchical wheel stands there on purpose.
    """
    from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES
    from timer_wheel.reading.ownership import is_guarded

    file = root.timer_wheel
    if not is_ordinary_file(file) or file.stat().st_size in (0, WHEEL_FILE_BYTES):
        return False
    return not is_guarded(root)


def _change_of_engine(root: StoreRoot, chosen: EngineName, precision_ms: int | None) -> str | None:
    """What becomes of a store that the engine takes over from another; None where it does not."""
    if not any(
        other_engine != chosen and takes_over(chosen, other_engine)
        for other_engine in engines_in(root)
    ):
        return None
    if chosen == "hierarchy":
        return (
            "the store changes its engine, from a wheel to a hierarchical wheel: no broker starts"
            " on it until --engine wheel has opened it"
        )
    from timer_wheel.reading.ownership import read_active

    active = read_active(root)
    slot_ms = precision_ms or (DEFAULT_SLOT_MS if active is None else active.slot_precision_ms)
    return (
        "the store changes its engine, from a hierarchical wheel to a wheel: due times move to the"
        f" end of their slot, up to {slot_ms} ms later"
    )


def _settings(
    engine: EngineName,
    *,
    precision_ms: str | None,
    level_table: DelayLevels | None,
    broker_conf: Path | None,
    dialect: str | None,
) -> dict[str, Any]:
    """What an engine is opened with; what nobody said is left to the engine and its store."""
    if engine == "levels" and precision_ms is not None:
        raise click.UsageError("--precision-ms is for the wheel, and this is a store of levels")
    if engine == "time-index" and precision_ms is not None:
        raise click.UsageError("--precision-ms is for a wheel; a time index keeps the millisecond")
    if engine == "wheel" and precision_ms == TO_THE_MILLISECOND:
        raise click.UsageError("--precision-ms 1 is for --engine hierarchy; a wheel has slots")
    options: dict[str, Any] = {}
    if dialect is not None:
        options["dialect"] = Dialect(dialect)
        if engine != "levels" and not options["dialect"].has_wheel:
            raise click.UsageError(f"--dialect {dialect}: brokers of that version have no wheel")
    levels = given_level_table(level_table, broker_conf)
    if levels is not None:
        options["levels"] = levels
    if precision_ms is not None:
        options["precision_ms"] = int(precision_ms)
    if broker_conf is not None:
        options |= _of_broker(engine, broker_conf, options.get("precision_ms"))
    return options


def _of_broker(engine: EngineName, path: Path, precision_ms: int | None) -> dict[str, Any]:
    """What a broker's configuration says of an engine."""
    from migrate.settings import TargetSettings, positive_number, read_broker_conf

    with errors_of_flag(BROKER_CONF):
        conf = read_broker_conf(path)
        broker = TargetSettings.from_conf(conf, precision_ms)
        settings = StoreSettings(
            commit_log_file_bytes=broker.commit_log_file_bytes,
            queue_file_bytes=broker.queue_file_bytes,
            timer_log_file_bytes=broker.timer_log_file_bytes,
            retention_ms=broker.retention_ms,
            broker_name=conf.get("brokerName") or StoreSettings().broker_name,
        )
        if engine in ("levels", "time-index"):
            return {"settings": settings}
        longest_s = positive_number(conf, "timerMaxDelaySec", DEFAULT_MAX_DELAY_S)
    if engine == "hierarchy":  # its promises are its own
        return {"settings": settings, "max_delay_ms": longest_s * 1_000}
    return {
        "settings": settings,
        "precision_ms": broker.precision_ms,
        "roll_window_slots": broker.roll_window_slots,
        "max_delay_ms": longest_s * 1_000,
    }
