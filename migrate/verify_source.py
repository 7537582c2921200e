# SPDX-License-Identifier: Apache-2.0
"""What is pending in a source, as ``legacy_levels`` reads it, under the conversion's settings."""

import numpy as np

from legacy_levels.level_backlog import read_backlog
from message_store.delay_levels import DelayLevels
from message_store.store_root import StoreRoot
from migrate.verify_pending import PendingMessages
from migrate.verify_settings import ConversionSettings


def read_pending(root: StoreRoot, settings: ConversionSettings) -> PendingMessages:
    """The pending messages in the order of the log, of the levels that were asked for.

    Raises what ``read_backlog`` raises: SourceError, PlanError, FormatError.
    """
    text = settings.level_table
    backlog = read_backlog(
        root.path,
        offsets_choice=settings.offsets,
        level_table=None if text is None else DelayLevels.parse(text),
        after_crash=settings.after_crash,
        whole_log=True,  # also what a lost queue once knew: the conversion may not have looked
    )
    pending = PendingMessages(
        commit_log_offset=backlog.commit_log_offset,
        size_bytes=backlog.size_bytes.astype(np.int64),
        level=backlog.level.astype(np.int64),
        queue_offset=backlog.queue_offset,
        due_ms=backlog.due_ms,
    )
    if not settings.only_levels:
        return pending
    return pending.chosen(np.isin(pending.level, settings.only_levels))
