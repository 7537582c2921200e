# SPDX-License-Identifier: Apache-2.0
"""What is pending in a source, as ``legacy_levels`` reads it, under the conversion's settings."""

import attrs
import numpy as np

from legacy_levels.backlog.backlog import read_backlog
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from migrate.report.conversion_parameters import ConversionSettings, QuarantinedEntry
from migrate.verify.pending import PendingMessages, split_quarantined


def read_pending(
    root: StoreRoot, settings: ConversionSettings, *, whole_log: bool = True
) -> PendingMessages:
    """The pending messages in the order of the log, of the levels that were asked for; unless it is
    the ``whole_log``, as a conversion sees them that does not look there.

    Raises what ``read_backlog`` raises: SourceError, PlanError, FormatError.
    """
    text = settings.level_table
    backlog = read_backlog(
        root.path,
        offsets_choice=settings.offsets,
        level_table=None if text is None else DelayLevels.parse(text),
        after_crash=settings.after_crash,
        whole_log=whole_log,  # what a lost queue once knew: the conversion may not have looked
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


def split_aside(
    pending: PendingMessages, root: StoreRoot, settings: ConversionSettings
) -> tuple[PendingMessages, PendingMessages, list[QuarantinedEntry]]:
    """The messages to be found, those set aside, and listed entries that are no pending message.

    An entry that leads nowhere was set aside as it stands in its queue, though the whole log may
    tell which message is its own. That one was set aside with it, unless it was converted as one
    that is in the log alone.
    """
    wanted, aside, strangers = split_quarantined(pending, settings.quarantined)
    if not strangers or settings.whole_log:
        return wanted, aside, strangers
    seen = read_pending(root, settings, whole_log=False)
    _, _, unknown = split_quarantined(seen, settings.quarantined)
    found = pending.chosen(~np.isin(pending.commit_log_offset, seen.commit_log_offset))
    places = zip(found.level.tolist(), found.queue_offset.tolist(), strict=True)
    offsets = dict(zip(places, found.commit_log_offset.tolist(), strict=True))
    listed = {(one.level, one.queue_offset): one for one in settings.quarantined}
    for one in set(strangers).difference(unknown):
        place = one.level, one.queue_offset
        if place in offsets:
            listed[place] = attrs.evolve(one, commit_log_offset=offsets[place])
    wanted, aside, _ = split_quarantined(pending, tuple(listed.values()))
    return wanted, aside, unknown
