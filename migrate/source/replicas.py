# SPDX-License-Identifier: Apache-2.0
"""Which stores hold the data of one broker: a master and its slave, members of a DLedger group, or
a store and its copy.

A slave's log equals its master's byte for byte, at the same offsets. So the two agree in the record
that begins a file of the log. Stores of different brokers never do: a record names its broker's
address and the millisecond in which it was stored. Limitation: copies that share no file of the log
are not recognised.
"""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import DelayStoreError, OptionsError
from message_store.base.printable import listed
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.format.record_layout import BLANK_RECORD, MAGIC_V1, MAGIC_V2
from message_store.reading.entries import record_offset
from migrate.source.members import ChosenMember, require_member, which_member

HEAD_BYTES = 64 << 10
"""The bytes of a record that are compared: its head, and usually all of it."""

FirstRecord = tuple[int, bytes]
"""The first offset of a log file, and a digest of its first record."""


class SameBrokerError(OptionsError):
    """Stores of one broker in one run: each would deliver the same messages."""


@attrs.frozen
class Replicas:
    """The stores (by index) of one broker; two of them or more share the record at
    ``commit_log_offset``.
    """

    indexes: tuple[int, ...]
    commit_log_offset: int


def find_replicas(sources: Sequence[Path]) -> list[Replicas]:
    """The groups of these stores that hold one broker's data. A store that cannot be read is in
    none.
    """
    groups: list[Replicas] = []
    holders: dict[FirstRecord, list[int]] = {}
    for index, source in enumerate(sources):
        for record in _first_records(source):
            holders.setdefault(record, []).append(index)
    for (offset, _digest), indexes in sorted(holders.items(), key=lambda item: item[0][0]):
        if len(indexes) > 1:
            groups = _joined(groups, Replicas(tuple(indexes), offset))
    return groups


def _joined(groups: Iterable[Replicas], replicas: Replicas) -> list[Replicas]:
    """The groups, with those joined that share a store with ``replicas``."""
    apart = []
    for group in groups:
        if set(group.indexes) & set(replicas.indexes):
            indexes = tuple(sorted({*group.indexes, *replicas.indexes}))
            replicas = Replicas(indexes, group.commit_log_offset)
        else:
            apart.append(group)
    return [*apart, replicas]


def _first_records(source: Path) -> list[FirstRecord]:
    """The first record of each file of a log that begins with one."""
    records = []
    try:
        with open_log(StoreRoot(source)) as log:
            for segment in log.segments:
                data = bytearray(min(HEAD_BYTES, segment.length_bytes))
                log.read_into(record_offset(log, segment.start_offset), memoryview(data))
                if record := _record(data):
                    records.append((segment.start_offset, hashlib.sha256(record).digest()))
    except DelayStoreError:
        return []  # its own conversion says what is wrong with it
    return records


def _record(data: bytearray) -> bytes:
    """The record at the beginning of these bytes, as much as is there; empty if there is none."""
    if len(data) < BLANK_RECORD.size:
        return b""
    head = BLANK_RECORD.decode_at(data, 0)  # every record begins with these two fields
    if head["magic"] not in (MAGIC_V1, MAGIC_V2) or head["size_bytes"] <= BLANK_RECORD.size:
        return b""
    return bytes(data[: head["size_bytes"]])


def choose_of_group(sources: Sequence[Path]) -> ChosenMember:
    """The member of a group that it would elect, of all members that are given; none of them may
    be running meanwhile. Raises OptionsError for stores that are not of one group, and SourceError.
    """
    with ExitStack() as held:
        for root in map(StoreRoot, sources):
            root.require_readable()
            held.enter_context(root.shared_lock())
        chosen = require_member(sources)
        groups = find_replicas(sources)
        together = max((len(group.indexes) for group in groups), default=1)
        if together < len(sources):
            raise OptionsError(
                f"{listed(map(str, sources))}: not of one group: they share no file of the log"
            )
        return chosen


def same_broker(sources: Sequence[Path], group: Replicas) -> SameBrokerError:
    """The error for a group, with a hint which store is the master's."""
    stores = [sources[index] for index in group.indexes]
    try:
        advice = which_member(stores)
    except DelayStoreError:
        advice = None
    advice = advice or f"Convert the master's store only{_hint(stores)}"
    where, them = ("", "both") if len(stores) == 2 else (" in two or more of them", "all")
    return SameBrokerError(
        f"{listed(map(str, stores))} hold the data of one broker: the record at log offset"
        f" {group.commit_log_offset:,} is the same{where}; if {them} were converted, its messages"
        f" would be delivered from each. {advice}"
    )


def _hint(stores: Sequence[Path]) -> str:
    """The stores that have delivered furthest, as a hint, if their offsets tell."""
    progress = {}
    for store in stores:
        try:
            progress[store] = sum(read_delay_offsets(store).offsets.values())
        except DelayStoreError:
            return ""
    furthest = max(progress.values())
    ahead = [store for store in stores if progress[store] == furthest]
    if len(ahead) == len(stores):
        return " (their delayOffset.json are at the same place)"
    those, are = ("that", "is") if len(ahead) == 1 else ("those", "are")
    return (
        f" (a slave's delayOffset.json lags behind: {those} of {listed(map(str, ahead))} {are}"
        " ahead)"
    )
