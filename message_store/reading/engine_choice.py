# SPDX-License-Identifier: Apache-2.0
"""Which of the engines a store directory belongs to, as its files show it.

Knows them by name and neither by import: whoever may import them maps the name to the class.
"""

from pathlib import Path
from typing import Literal, get_args

from message_store.base.errors import OptionsError, SourceError, disk_errors
from message_store.files.rocksdb.queues import refuse_queue_database
from message_store.files.segments import list_directories, list_segments
from message_store.files.small_files import is_directory, is_ordinary_file, is_present
from message_store.files.store_root import StoreRoot
from message_store.format.properties import LEVEL_TOPIC, TIME_INDEX_TOPIC

EngineName = Literal["levels", "wheel", "hierarchy", "time-index"]
ENGINE_NAMES: tuple[EngineName, ...] = get_args(EngineName)

NAMED_ENGINES: dict[EngineName, str] = {
    "levels": "the levels",
    "wheel": "a wheel",
    "hierarchy": "a hierarchical wheel",
    "time-index": "a time index",
}
"""The engines as a sentence names them."""

_TO_A_WHEEL = {"levels": "; `delaywheel convert` moves pending messages to a wheel"}
_ONE_ANOTHER = frozenset({"wheel", "hierarchy"})
_WHEEL_MIN_BYTES = 4097
"""A shorter file in the place of a wheel is the sentence that keeps brokers out."""

DELAY_OFFSETS_NAME = "delayOffset.json"
NO_ENGINE_APPENDS = (
    "no engine can append to them; `delaywheel convert` moves pending messages to a wheel"
)


def engines_in(store: StoreRoot) -> tuple[EngineName, ...]:
    """The engines that have put something into this directory; none for a new one.

    Brokers of 5.x make an empty wheel and a delayOffset.json wherever they start. So the wheel's
    files count as soon as they are there, and the levels only by their queues where there is a
    wheel. A hierarchical wheel stands in the place of the other, and says so. Raises SourceError
    where the disk refuses.
    """
    has_levels = bool(list_directories(store.consume_queues / LEVEL_TOPIC))
    has_wheel = (
        is_present(store.timer_wheel)
        or is_directory(store.timer_queue())
        or bool(list_segments(store.timer_log))
    )
    if not has_wheel:
        has_levels |= is_present(store.config_file(DELAY_OFFSETS_NAME))
    has_hierarchy = is_hierarchical(store)
    has_time_index = bool(list_directories(store.consume_queues / TIME_INDEX_TOPIC))
    has_time_index |= is_present(time_index_state(store))
    has_engine: dict[EngineName, bool] = {
        "levels": has_levels,
        "wheel": has_wheel and not has_hierarchy,
        "hierarchy": has_hierarchy,
        "time-index": has_time_index,
    }
    return tuple(name for name, is_there in has_engine.items() if is_there)


def hierarchy_mark(store: StoreRoot) -> Path:
    """The file that a hierarchical wheel has while the pending messages of a store are its own."""
    return store.own / "hierarchy" / "active"


def is_hierarchical(store: StoreRoot) -> bool:
    """Whether a hierarchical wheel has the pending messages of a store: by its mark, where brokers
    are kept out. A handover that was stopped at its last step, or before it, leaves the mark beside
    a wheel in files. That is whole then, and a broker may have worked with it since.
    """
    return is_present(hierarchy_mark(store)) and not _is_in_force(store.timer_wheel)


def _is_in_force(wheel: Path) -> bool:
    """Whether a file is one that brokers start with: a wheel, or an empty one beside snapshots."""
    if not is_ordinary_file(wheel):
        return False
    size_bytes = wheel.stat().st_size
    has_snapshots = size_bytes == 0 and any(wheel.parent.glob(f"{wheel.name}.*"))
    return has_snapshots or size_bytes >= _WHEEL_MIN_BYTES


def time_index_state(store: StoreRoot) -> Path:
    """The file that a time index leaves, also where nothing was ever put into it."""
    return store.own / "time-index" / "state"


def takes_over(engine: EngineName, other: EngineName) -> bool:
    """Whether an engine that opens a store takes the pending messages of another engine there."""
    return {engine, other} <= _ONE_ANOTHER


def require_engine(store: StoreRoot, engine: EngineName) -> None:
    """Raise OptionsError for an engine that never put anything into a store where the other did.

    Nothing waits for it there, which would be said of a store full of messages; and what it puts
    there makes a store of two engines, which each need their own calls. A broker's store that has
    both is left to whoever asks.
    """
    engines = engines_in(store)
    if engines and engine not in engines and not any(takes_over(engine, each) for each in engines):
        present = engines[0]  # of two engines, one is the asked one or is taken over by it
        raise OptionsError(
            f"{store.path}: is a store of {NAMED_ENGINES[present]}; nothing was ever put into its"
            f" {engine}: leave --engine out, or use another directory"
            f"{_TO_A_WHEEL.get(present, '')}"
        )


def choose_engine(
    store: StoreRoot, asked: EngineName | None = None, *, may_be_new: bool = False
) -> EngineName:
    """The engine to open a store with: the one asked for, or else the one whose store it is.

    Raises SourceError for a directory that is no store, unless it ``may_be_new`` and is missing or
    empty, and for queues in RocksDB. Raises OptionsError where nothing or two engines lie in it and
    none was asked for.
    """
    if asked is not None and asked not in ENGINE_NAMES:
        raise OptionsError(f"{asked!r} is no engine; these are: {', '.join(ENGINE_NAMES)}")
    is_new = may_be_new and _is_new(store.path)
    if not is_new:
        store.require_readable()
        refuse_queue_database(store.path, NO_ENGINE_APPENDS)
    if asked is not None:
        return asked
    engines = () if is_new else engines_in(store)
    if len(engines) == 1:
        return engines[0]
    both = " and ".join(NAMED_ENGINES[each] for each in engines)
    what = f"both {both}" if engines else "neither levels nor a wheel yet"
    raise OptionsError(
        f"{store.path}: holds {what}: name the engine (--engine in a shell): levels, wheel,"
        " hierarchy or time-index"
    )


def _is_new(path: Path) -> bool:
    """Whether nothing stands there, or an empty directory. Raises SourceError."""
    if not is_directory(path):
        return not is_present(path)
    with disk_errors(SourceError, path, "read"):
        return not any(path.iterdir())
