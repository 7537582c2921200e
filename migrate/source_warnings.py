# SPDX-License-Identifier: Apache-2.0
"""What is odd about a source's files, before anything is read from them: it is said aloud."""

from collections.abc import Iterator

from legacy_levels.level_queues import levels_with_queue
from message_store.segment_files import list_segments
from message_store.store_root import StoreRoot
from migrate.store_files import row_problems


def source_warnings(source: StoreRoot, *, whole_log: bool) -> list[str]:
    """Files of a wrong length or missing, as sentences, and what finds the messages they held."""
    said = [*row_problems(source), *_emptied_queues(source)]
    if any(str(source.consume_queues) in sentence for sentence in said) and not whole_log:
        said.append("what such a queue has lost may still be in the log: --whole-log looks there")
    return said


def _emptied_queues(source: StoreRoot) -> Iterator[str]:
    """Levels whose queue has lost all files: a broker makes its directory with the first of them,
    and retention keeps the last for ever.
    """
    for level in levels_with_queue(source.path):
        directory = source.level_queue(level)
        if not list_segments(directory):
            yield f"{directory}: the queue of level {level} has no file left"
