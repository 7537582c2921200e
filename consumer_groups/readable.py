# SPDX-License-Identifier: Apache-2.0
"""Reads messages of a queue, of which a damaged one hides no other."""

import logging
from collections.abc import Callable, Sequence

from message_store.base.errors import FormatError
from message_store.files.group_journal import QueueKey
from message_store.format.message import StoredMessage
from message_store.interface.delay_store import TopicReader

_LOG = logging.getLogger(__name__)

Tell = Callable[[str], object]
"""Is told of a message that cannot be read: where it lies, and why."""


def tell_log(where: str) -> None:
    """Warn in the log."""
    _LOG.warning("a message that cannot be read is skipped: %s", where)


def read_readable(
    reader: TopicReader, key: QueueKey, from_offset: int, count: int, tell: Tell
) -> Sequence[StoredMessage]:
    """At most ``count`` messages of the queue ``key`` from a queue offset on. ``tell`` is told of
    each damaged one, which is skipped.
    """
    try:
        return reader.read(key.queue_id, from_offset, count)
    except FormatError:
        pass
    messages: list[StoredMessage] = []
    end = reader.ranges()[key.queue_id][1]
    while len(messages) < count and from_offset < end:
        try:
            found = reader.read(key.queue_id, from_offset, 1)
        except FormatError as error:
            tell(f"{key.topic}, queue {key.queue_id}, queue offset {from_offset}: {error}")
            from_offset += 1
            continue
        if not found:
            break
        messages += found
        from_offset = found[0].queue_offset + 1
    return messages
