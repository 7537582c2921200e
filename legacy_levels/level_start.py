# SPDX-License-Identifier: Apache-2.0
"""Where delivery of each level goes on: by delayOffset.json, by the marks beside it, or by both.

A mark belongs to one place of the log (``delivery_marks``). Where the log still ends there, nobody
has delivered anything since, and the mark is the truth: a garbled or older delayOffset.json would
lose or repeat messages. Where the log goes on behind it, a broker may have delivered since. Its
offsets are believed after an orderly stop, unless they are lower than the mark's, which offsets
never become. After a kill they are up to ten seconds old, so the mark and the copies in the log
behind it tell. After a loss of power the files may be ahead of the log, until somebody else closes
the store: the latest mark then names a record that the log does not have. After an orderly stop an
offset that both delayOffset.json and its `.bak` say is believed over a lower mark: that is how
`retire` moves levels past what was converted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from legacy_levels.delay_offsets import (
    FILE_NAME,
    DelayOffsets,
    OffsetsChoice,
    OffsetsFile,
    read_delay_offsets,
)
from legacy_levels.delivery_marks import (
    DeliveryMark,
    Run,
    checksum,
    is_of_a_lost_log,
    mark_to_trust,
)
from message_store.base.errors import SourceError
from message_store.files.small_files import read_small_file

if TYPE_CHECKING:
    from message_store.writing.store import LiveStore


@attrs.frozen(eq=False)
class Start:
    """The offsets to go on from, by level.

    ``done`` are queue offsets behind them that were delivered out of turn. ``since`` is the place
    in the log that the offsets belong to, None where that is not known. ``counted`` are the offsets
    of a delayOffset.json that is ahead: what lies before them was delivered if the log has a copy,
    of whatever time. ``distrust`` says why delayOffset.json is not believed.
    """

    found: DelayOffsets
    offsets: Mapping[int, int]
    since: int | None = None
    done: Mapping[int, Sequence[Run]] = attrs.field(factory=dict)
    counted: Mapping[int, int] = attrs.field(factory=dict)
    distrust: str | None = None


def where_to_start(live: LiveStore, choice: OffsetsChoice) -> Start:
    """Read the offsets and the marks, and change nothing.

    Raises SourceError where no offsets can be read and no mark is there.
    """
    root = live.root.path
    if choice is not OffsetsChoice.AUTO or live.settings.repeat_after_kill:
        chosen = read_delay_offsets(root, choice)
        return Start(chosen, chosen.offsets)
    found = _broker_offsets(root)
    mark = mark_to_trust(root, live.log)
    if mark is None:
        found = found or read_delay_offsets(root)
        return Start(found, found.offsets)
    path = live.root.config_file(FILE_NAME)
    table = checksum(read_small_file(path))
    is_whole = found is not None and found.main.problem is None
    if found is None:
        nothing = OffsetsFile(path, None, "not used")
        found = DelayOffsets({}, OffsetsChoice.NONE, nothing, nothing)
    is_lost = is_of_a_lost_log(root, table, live.log)
    agreed = _agreed_offsets(found) if live.was_clean and not is_lost else {}
    if mark.log_end == live.log.end:
        start = _by_mark(mark, found, agreed)
        # After a close the file is what was written last; a kill may have come before that.
        expected = mark.tables[-1:] if live.was_clean else mark.tables
        is_other = any(found.offset_of(level) != at for level, at in start.offsets.items())
        if is_whole and is_other and table not in expected:
            return attrs.evolve(start, distrust="it was changed since the levels were saved")
        return start
    is_older = any(found.offset_of(level) < at for level, at in mark.offsets.items())
    # The same file beside a longer log: the levels were killed, and another engine closed it.
    is_ours = is_lost or table in mark.tables
    if live.was_clean and is_whole and not is_older and not is_ours:
        return Start(found, found.offsets)
    start = attrs.evolve(_by_mark(mark, found, agreed), counted=found.offsets)
    if is_whole and is_older:
        return attrs.evolve(start, distrust="it is older than the last that was saved")
    return start


def _by_mark(mark: DeliveryMark, found: DelayOffsets, agreed: Mapping[int, int]) -> Start:
    offsets = {level: at for level, at in found.offsets.items() if level not in mark.offsets}
    offsets |= {level: max(at, agreed.get(level, 0)) for level, at in mark.offsets.items()}
    return Start(found, offsets, mark.log_end, mark.done)


def _agreed_offsets(found: DelayOffsets) -> Mapping[int, int]:
    """The offsets that both files say."""
    main, backup = found.main, found.backup
    if main.problem or backup.problem or main.offsets is None or backup.offsets is None:
        return {}
    return dict(main.offsets.items() & backup.offsets.items())


def _broker_offsets(root: Path) -> DelayOffsets | None:
    """What a broker would start from; None where it would not start."""
    try:
        return read_delay_offsets(root)
    except SourceError:
        return None
