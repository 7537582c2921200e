# SPDX-License-Identifier: Apache-2.0
"""Levels and topics that a store lacks: a typing error must not look like an empty store."""

from collections.abc import Collection, Iterable

from legacy_levels.backlog.queues import levels_with_queue
from legacy_levels.delay_offsets import OffsetsChoice, read_delay_offsets
from message_store.base.errors import OptionsError
from message_store.base.printable import printable
from message_store.files.config_files import read_topics
from message_store.files.rocksdb.queues import queue_database
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.reading.topic_listing import topics_with_queues
from migrate.source.level_delays import level_table_of

_LISTED = 20


def require_queues(
    store: StoreRoot, levels: Iterable[int], levels_with_queue: Collection[int]
) -> None:
    """Raise OptionsError for a level without a queue; ``known`` are those with one."""
    if unknown := sorted(set(levels) - set(levels_with_queue)):
        raise OptionsError(
            f"{store.path}: the store has no queue of level {unknown[0]}; it has queues of levels:"
            f" {_listed(sorted(levels_with_queue))}"
        )


def require_levels(
    store: StoreRoot,
    levels: Collection[int],
    *,
    offsets: OffsetsChoice | str,
    table: DelayLevels | None = None,
) -> None:
    """Raise OptionsError for a level that is not in the level table, which the messages tell unless
    it is given. Raises FormatError where a queue cannot be told.
    """
    if not levels:
        return
    table = table or level_table_of(store.path, read_delay_offsets(store.path, offsets))
    unknown = sorted(level for level in levels if not 1 <= level <= table.max_level)
    if unknown:
        raise OptionsError(
            f"{store.path}: the store has no level {unknown[0]}; it has levels 1 to"
            f" {table.max_level}"
        )


def absent_choices(
    store: StoreRoot, *, topics: Iterable[str] = (), levels: Iterable[int] = ()
) -> list[str]:
    """A warning for each topic and level that the store never used, of those that were asked for
    and for which nothing was found. Raises SourceError where the disk refuses.
    """
    with_queue = sorted(levels_with_queue(store.path))
    warnings = [
        f"{store.path}: nothing was ever put into level {level}; levels with a queue:"
        f" {_listed(with_queue)}"
        for level in levels
        if level not in with_queue
    ]
    asked = list(topics)
    if asked:
        is_in_rocksdb = queue_database(store.path) is not None
        with_queues = () if is_in_rocksdb else topics_with_queues(store.path)
        known_topics = sorted({*with_queues, *read_topics(store.path)})
        warnings += [
            f"{store.path}: no message for topic {topic!r} was found, and the store does"
            f" not know that topic; it knows: {_listed(known_topics)}"
            for topic in asked
            if topic not in known_topics
        ]
    return warnings


def _listed(names: Collection[object]) -> str:
    shown = [printable(str(name)) for name in list(names)[:_LISTED]]
    more = f", and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return (", ".join(shown) or "none") + more
