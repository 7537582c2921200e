# SPDX-License-Identifier: Apache-2.0
"""Members of a DLedger group: how far the log of each goes, and which of them would be elected.

A group elects the member whose last entry has the highest term and, of equal terms, the highest
index. Nothing in a member says whether it is behind: that shows only beside the others.
RocketMQ: DLedgerLeaderElector#handleVote (dledger 0.3).
"""

from collections.abc import Sequence
from pathlib import Path

import attrs

from legacy_levels.backlog.log_tail import find_indexed_end
from message_store.files.dledger import member_directory, member_id
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.reading.commit_log import start_of_last_used_file
from message_store.reading.entries import find_last_entry


@attrs.frozen
class MemberState:
    """A member by its id (`dLegerSelfId`), and the last entry of its log; -1 where it has none."""

    member: str
    last_term: int
    last_index: int

    def __str__(self) -> str:
        return f"entry {self.last_index:,} of term {self.last_term}"


def member_state(store: StoreRoot) -> MemberState | None:
    """How far a member's log goes; None for a store of another kind. Raises SourceError."""
    directory = member_directory(store.path)
    if directory is None:
        return None
    with open_log(store) as log:
        known_end = find_indexed_end(store.path, log).log_offset
        last = find_last_entry(log, start_of_last_used_file(log), known_end=known_end)
    return MemberState(member_id(directory), last.term, last.index)


def which_member(stores: Sequence[Path]) -> str | None:
    """A sentence that says which of these members to convert, and where the others end; None
    where one of the stores is no member. Raises SourceError.
    """
    found = [(store, member_state(StoreRoot(store))) for store in stores]
    states = [(store, state) for store, state in found if state is not None]
    if len(states) < len(found):
        return None
    last = max((state.last_term, state.last_index) for _, state in states)
    chosen, best = next(
        (store, state) for store, state in states if (state.last_term, state.last_index) == last
    )
    others = [f"{store} ends at {state}" for store, state in states if store != chosen]
    return (
        f"Convert {chosen} only, which the group would elect: it ends at {best};"
        f" {', '.join(others)}"
    )
