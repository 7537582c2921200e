# SPDX-License-Identifier: Apache-2.0
"""For which brokers a store of levels is written, as its files show it.

A store that a 5.x broker has had is gone on with as one: it may hold messages that brokers of 4.9
do not take. The handwriting of delayOffset.json tells the version; where it does not, files and
members that 4.9 does not know tell a 5.x.
"""

from __future__ import annotations

from legacy_levels.delay_offsets import OffsetsChoice, OffsetsFile, read_delay_offsets
from message_store.files.config_files import TOPICS, read_config
from message_store.files.small_files import is_ordinary_file, is_present, read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.dialect import Dialect


def dialect_of(root: StoreRoot) -> Dialect:
    """The dialect to open a store with when nobody says one; 4.9 for a new one.

    Raises SourceError where the disk refuses.
    """
    offsets = read_delay_offsets(root.path, OffsetsChoice.NONE)
    files = (offsets.main, offsets.backup)
    written = [Dialect(file.dialect.value) for file in files if file.dialect is not None]
    newer = [dialect for dialect in written if dialect is not Dialect.ROCKETMQ_4_9]
    if newer:
        return newer[0]
    return Dialect.ROCKETMQ_5_5 if _was_of_5x(root, files) else Dialect.ROCKETMQ_4_9


def _was_of_5x(root: StoreRoot, files: tuple[OffsetsFile, ...]) -> bool:
    """Whether anything is there that brokers of 4.9 do not make."""
    return (
        any(file.data_version is not None for file in files)
        or is_present(root.timer_wheel)
        or is_present(root.timer_queue())
        or (is_ordinary_file(root.abort) and bool(read_small_file(root.abort)))
        or _topics_have_attributes(root)
    )


def _topics_have_attributes(root: StoreRoot) -> bool:
    table = read_config(root.path, TOPICS).value.get("topicConfigTable")
    topics = table.values() if isinstance(table, dict) else ()
    return any(isinstance(topic, dict) and "attributes" in topic for topic in topics)
