# SPDX-License-Identifier: Apache-2.0
"""Members of a group, and stores of one broker: how far each log goes, which member a group elects,
who holds the same data.

A DLedger group elects the member whose last entry has the highest term and, of equal terms, the
highest index. A group with a controller has epochs. The member of the highest has all that was
confirmed; of several it is the one with the longest log. Nothing in a member says whether it is
behind: that shows only beside the others. RocketMQ: DLedgerLeaderElector#handleVote (dledger 0.3),
EpochFileCache, ReplicasInfoManager (5.5.1).

A slave's log equals its master's byte for byte, at the same offsets. So the two agree in the record
that begins a file of the log. Stores of different brokers never do: a record names its broker's
address and the millisecond in which it was stored. Limitation: copies that share no file of the log
are not recognised.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from legacy_levels.delay_offsets import read_delay_offsets
from message_store.base.errors import BadFieldError, DelayStoreError, OptionsError
from message_store.base.printable import counted, listed
from message_store.files.dledger import member_directory, member_id
from message_store.files.log_row import open_log
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.members.epoch_file import decode_epochs
from message_store.format.record_layout import BLANK_RECORD, MAGIC_V1, MAGIC_V2
from message_store.reading.commit_log import find_log_end, start_of_last_used_file
from message_store.reading.entries import find_last_entry, record_offset
from message_store.reading.indexed_end import find_indexed_end

EPOCHS_NAME = "epochFileCheckpoint"
IDENTITY_NAME = "brokerIdentity"
HEAD_BYTES = 64 << 10
"""The bytes of a record that are compared: its head, and usually all of it."""

FirstRecord = tuple[int, bytes]
"""The first offset of a log file, and a digest of its first record."""


@attrs.frozen
class MemberState:
    """A member by its id (`dLegerSelfId`, or the broker id of a controller's group), and the end of
    its log: the last entry and its term; or the last epoch and the length of the log. -1 where it
    has none.
    """

    member: str
    last_term: int
    last_index: int
    log_end: int
    is_controlled: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Of two members the group elects the one with the higher rank: term or epoch, then end."""
        return self.last_term, self.last_index

    def __str__(self) -> str:
        if self.is_controlled:
            return f"log offset {self.last_index:,} of epoch {self.last_term}"
        return f"entry {self.last_index:,} of term {self.last_term}"


def member_state(store: StoreRoot) -> MemberState | None:
    """How far a member's log goes; None for a store of another kind. Raises SourceError."""
    directory = member_directory(store.path)
    if directory is None:
        return _controlled_state(store)
    with open_log(store) as log:
        known_end = find_indexed_end(store.path, log).log_offset
        last = find_last_entry(log, start_of_last_used_file(log), known_end=known_end)
    return MemberState(member_id(directory), last.term, last.index, last.end_offset)


def _controlled_state(store: StoreRoot) -> MemberState | None:
    main = store.path / EPOCHS_NAME
    texts = [read_small_file(path) for path in (main, main.with_name(f"{EPOCHS_NAME}.bak"))]
    if texts == [None, None]:
        return None
    last = next((each for each in map(_last_epoch, texts) if each is not None), -1)
    identity = (read_small_file(store.path / IDENTITY_NAME) or b"").decode("utf-8", "replace")
    with open_log(store) as log:
        known_end = find_indexed_end(store.path, log).log_offset
        end = find_log_end(log, known_end=known_end).log_end
    return MemberState(identity.rpartition("#")[2], last, end, end, is_controlled=True)


def _last_epoch(content: bytes | None) -> int | None:
    """The last epoch of a text; None where it cannot be decoded: a broker takes the .bak then."""
    try:
        epochs = decode_epochs(content or b"")
    except BadFieldError:
        return None
    return epochs[-1].epoch if epochs else None


@attrs.frozen
class ChosenMember:
    """The member that a group would elect, and a sentence about each other one."""

    store: Path
    state: MemberState
    others: tuple[str, ...]


def choose_member(stores: Sequence[Path]) -> ChosenMember | None:
    """Which of the members of a group it would elect; None where one of them is no member. Of those
    that end alike it is the first. Raises SourceError.
    """
    states = [(store, member_state(StoreRoot(store))) for store in stores]
    found = [(store, state) for store, state in states if state is not None]
    if len(found) < len(states) or len({state.is_controlled for _, state in found}) > 1:
        return None
    highest = max(state.rank for _, state in found)
    chosen, best = next((store, state) for store, state in found if state.rank == highest)
    others = tuple(_compared(store, state, best) for store, state in found if store != chosen)
    return ChosenMember(chosen, best, others)


def _compared(store: Path, state: MemberState, best: MemberState) -> str:
    """Where another member ends, and what it lacks: of one term, entries are the same."""
    ends = f"{store} ends at {state}"
    if state.rank == best.rank:
        return f"{ends} as well"
    if state.last_term != best.last_term:
        return ends
    unit = "byte of the log" if best.is_controlled else "entry"
    units = "bytes of the log" if best.is_controlled else "entries"
    lacking = counted(best.last_index - state.last_index, unit, units)
    return f"{ends} and lacks the last {lacking}"


def peers_in(conf: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of all members of a group, from a broker's configuration; none of any other.

    >>> peers_in({"dLegerPeers": "n0-127.0.0.1:40911;n1-127.0.0.1:40912"})
    ('n0', 'n1')
    """
    peers = conf.get("dLegerPeers", "").split(";")
    return tuple(peer.strip().partition("-")[0] for peer in peers if peer.strip())


# --- the data of one broker -----------------------------------------------------------------------


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
        chosen = choose_member(sources)
        if chosen is None:
            raise OptionsError(
                f"{', '.join(map(str, sources))}: not all of them are members of a DLedger group,"
                " or of a group with a controller"
            )
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
        chosen = choose_member(stores)
    except DelayStoreError:
        chosen = None
    if chosen is None:
        advice = f"Convert the master's store only{_hint(stores)}"
    else:
        advice = (
            f"Convert {chosen.store} only, which the group would elect (--members chooses it): it"
            f" ends at {chosen.state}; {', '.join(chosen.others)}"
        )
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
