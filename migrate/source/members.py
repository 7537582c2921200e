# SPDX-License-Identifier: Apache-2.0
"""Members of one group: how far the log of each goes, and which of them the group would elect.

A DLedger group elects the member whose last entry has the highest term and, of equal terms, the
highest index. A group with a controller has epochs. The member of the highest has all that was
confirmed; of several it is the one with the longest log. Nothing in a member says whether it is
behind: that shows only beside the others. RocketMQ: DLedgerLeaderElector#handleVote (dledger 0.3),
EpochFileCache, ReplicasInfoManager (5.5.1).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from legacy_levels.backlog.log_tail import find_indexed_end
from message_store.base.errors import BadFieldError, OptionsError
from message_store.base.printable import counted
from message_store.files.dledger import member_directory, member_id
from message_store.files.log_row import open_log
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.members.epoch_file import decode_epochs
from message_store.reading.commit_log import find_log_end, start_of_last_used_file
from message_store.reading.entries import find_last_entry

EPOCHS_NAME = "epochFileCheckpoint"
IDENTITY_NAME = "brokerIdentity"


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


def require_member(stores: Sequence[Path]) -> ChosenMember:
    """``choose_member`` of stores that are said to be members. Raises OptionsError besides."""
    chosen = choose_member(stores)
    if chosen is None:
        raise OptionsError(
            f"{', '.join(map(str, stores))}: not all of them are members of a DLedger group, or of"
            " a group with a controller"
        )
    return chosen


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


def which_member(stores: Sequence[Path]) -> str | None:
    """A sentence that says which of these members to convert, and where the others end; None
    where one of the stores is no member. Raises SourceError.
    """
    chosen = choose_member(stores)
    if chosen is None:
        return None
    return (
        f"Convert {chosen.store} only, which the group would elect (--members chooses it): it ends"
        f" at {chosen.state}; {', '.join(chosen.others)}"
    )


def peers_in(conf: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of all members of a group, from a broker's configuration; none of any other.

    >>> peers_in({"dLegerPeers": "n0-127.0.0.1:40911;n1-127.0.0.1:40912"})
    ('n0', 'n1')
    """
    peers = conf.get("dLegerPeers", "").split(";")
    return tuple(peer.strip().partition("-")[0] for peer in peers if peer.strip())
