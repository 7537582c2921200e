# SPDX-License-Identifier: Apache-2.0
"""Copies in the log, and which pending records have one: what a killed store had dealt with."""

from collections import defaultdict
from collections.abc import Hashable, Iterable

import numpy as np

from message_store.columns.byte_column import Int64s
from message_store.format.java_numbers import LONG_MAX
from message_store.writing.log import LiveLog
from timer_wheel.reading.copy_kernels import (
    COPY_COLUMNS,
    FIRST_OFFSET,
    IS_ROLL,
    OFFSET,
    ONE,
    TWO,
    find_copies,
    identify_rows,
)
from timer_wheel.timers.rows import Bools

_NOT_TOLD = -1


class Copies:
    """Where copies lie, by what they are copies of; each is taken once.

    ``found`` has for each its identity, its place, whether it went round again, and its
    ``first_offset``, in the order of the log.
    """

    def __init__(self, found: Iterable[tuple[Hashable, int, bool, int]] = ()) -> None:
        self._places: defaultdict[tuple[Hashable, bool, int], list[int]] = defaultdict(list)
        for identity, offset, is_roll, first in reversed(list(found)):
            told = first if is_roll and first < offset else _NOT_TOLD
            self._places[identity, is_roll, told].append(offset)  # so that the first is the last

    def __bool__(self) -> bool:
        return bool(self._places)

    @property
    def have_rolled(self) -> bool:
        """Whether any of them went round again."""
        return any(is_roll for _, is_roll, _ in self._places)

    def take(
        self,
        identity: Hashable,
        offset: int,
        first_offset: int,
        *,
        may_have_rolled: bool,
        cancelled_at: int = LONG_MAX,
    ) -> bool:
        """Take the first copy behind a message's place, if there is one; equal messages are asked
        for in the order of the log. None is delivered behind the marker that cancelled it.

        What was to roll has gone round again or, when the wheel was late, been delivered. A copy
        that says of which message it is, is no equal one's: retention may have taken that one's
        record, or a hand that moved back may have delivered it without a roll.
        """
        delivered = self._places.get((identity, False, _NOT_TOLD))
        for told in (first_offset, _NOT_TOLD) if may_have_rolled else ():
            if self._take(self._places.get((identity, True, told)), offset):
                return True
        return self._take(delivered, offset, cancelled_at)

    @staticmethod
    def _take(places: list[int] | None, offset: int, until: int = LONG_MAX) -> bool:
        while places and places[-1] <= offset:
            places.pop()
        if not places or places[-1] > until:
            return False
        places.pop()
        return True


def copies_in_log(log: LiveLog, begin: int) -> Int64s:
    """All copies in the log from a place on where a record begins, in its order."""
    parts = [np.empty((COPY_COLUMNS, 0), np.int64)]
    for start in log.segments.starts:
        place = max(start, begin)
        length = min(start + log.file_bytes, log.end) - place
        if length <= 0:
            continue
        address = log.segments.address_of_file(start) + place - start
        count = find_copies(address, length, place, parts[0])
        if count:
            found = np.zeros((COPY_COLUMNS, count), np.int64)
            find_copies(address, length, place, found)
            parts.append(found)
    return np.concatenate(parts, axis=1)


def which_are_done(
    log: LiveLog,
    offsets: Int64s,
    sizes: Int64s,
    may_have_rolled: Bools,
    copies: Int64s,
    cancelled_at: Int64s,
) -> Bools:
    """Which of these records have a copy, by the rule of ``copies``; ``cancelled_at`` tells where
    in the log the delete marker of each is, ``LONG_MAX`` for none.
    """
    addresses = log.addresses(offsets)
    addresses[sizes > log.rooms(offsets)] = -1
    found = np.zeros((COPY_COLUMNS, len(offsets)), np.int64)
    identify_rows(addresses, sizes, offsets, found)
    may_be = np.flatnonzero(np.isin(found[ONE], copies[ONE]) & (addresses >= 0))
    may_be = may_be[np.argsort(offsets[may_be], kind="stable")]
    wanted = copies[:, np.isin(copies[ONE], found[ONE])]
    keys = zip(wanted[ONE].tolist(), wanted[TWO].tolist(), strict=True)
    is_roll = wanted[IS_ROLL] != 0
    places_and_kinds = wanted[OFFSET].tolist(), is_roll.tolist(), wanted[FIRST_OFFSET].tolist()
    known = Copies(zip(keys, *places_and_kinds, strict=True))
    done = np.zeros(len(offsets), bool)
    columns = zip(
        may_be.tolist(),
        offsets[may_be].tolist(),
        found[ONE, may_be].tolist(),
        found[TWO, may_be].tolist(),
        found[FIRST_OFFSET, may_be].tolist(),
        may_have_rolled[may_be].tolist(),
        cancelled_at[may_be].tolist(),
        strict=True,
    )
    for row, offset, one, two, first_offset, rolls, marker in columns:
        place = offset, first_offset
        done[row] = known.take((one, two), *place, may_have_rolled=rolls, cancelled_at=marker)
    return done
