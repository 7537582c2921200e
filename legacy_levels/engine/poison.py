# SPDX-License-Identifier: Apache-2.0
"""Records that block a level of a 4.9 broker: whole ones that do not say where they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from legacy_levels.engine.cursor import DueEntries
from legacy_levels.engine.waiting_records import are_plain_numbers, read_waiting, real_queue_id
from message_store.base.errors import FormatError
from message_store.format import properties as names
from message_store.format.message import StoredMessage

if TYPE_CHECKING:
    from message_store.writing.log import LiveLog


def is_poison(message: StoredMessage) -> bool:
    """Whether preparing a delivery fails: REAL_TOPIC is missing, or REAL_QID is or is no number."""
    if names.REAL_TOPIC not in message.properties:
        return True
    try:
        real_queue_id(message)
    except FormatError:
        return True
    return False


def first_poison(log: LiveLog, entries: DueEntries) -> int | None:
    """The first row of these whose record is poison; one that is missing or damaged is not."""
    for part in read_waiting(log, entries.commit_log_offset, entries.size_bytes):
        doubtful = (part.real_topic.lengths == 0) | ~are_plain_numbers(part.real_queue_id)
        for row in np.flatnonzero(doubtful).tolist():
            if is_poison(part.batch.message(row)):
                return int(part.rows[row])
    return None
