# SPDX-License-Identifier: Apache-2.0
"""Where a member of a DLedger group keeps its log, and which stores of members are not read.

The log lies in ``dledger-ID/data``, unless its broker's configuration says otherwise. Its files go
on where those of ``commitlog/`` end, if the store was an ordinary one before (docs/FORMAT.md,
dledger log).
"""

from collections.abc import Sequence
from pathlib import Path

from message_store.base.errors import SourceError, UnsupportedStoreError
from message_store.files.segments import list_directories, list_row
from message_store.files.small_files import read_piece

MEMBER_PREFIX = "dledger-"
"""The name of a member's directory is this and its id."""
_HEAD_BYTES = 8
NO_LINK = "a link in the place of a store's own file; put there what it leads to"


def member_directory(root: Path) -> Path | None:
    """The directory of a member in the store at ``root``; None for any other store.

    Raises SourceError, and UnsupportedStoreError where there are several.
    """
    members = [each for each in list_directories(root) if each.name.startswith(MEMBER_PREFIX)]
    if len(members) > 1:
        raise UnsupportedStoreError(
            f"{root}: holds {members[0].name} and {members[1].name}; expected one member of a"
            " DLedger group"
        )
    return members[0] if members else None


def member_id(directory: Path) -> str:
    """The id of the member whose directory this is: its `dLegerSelfId`."""
    return directory.name.removeprefix(MEMBER_PREFIX)


def entries_directories(root: Path, named: tuple[Path, ...]) -> tuple[Path, ...]:
    """The directories with the files of a member's log, the ``named`` ones if there are any; none
    for any other store. Raises as ``member_directory``.
    """
    member = member_directory(root)
    return () if member is None else named or (member / "data",)


def readable_entries(
    root: Path, named: tuple[Path, ...], commit_logs: Sequence[Path]
) -> tuple[Path, ...]:
    """The same, after a look at what is there.

    Raises UnsupportedStoreError where no file of the log is found, SourceError for a link, and
    where ``commit_logs`` have records at offsets of the member's log: a broker was started on the
    store without its group, and stored something there. Raises OSError.
    """
    for link in root.glob(f"{MEMBER_PREFIX}*"):
        if link.is_symlink():
            raise SourceError(f"{link}: {NO_LINK}")
    entries = entries_directories(root, named)
    if not entries:
        return ()
    files = list_row(entries)
    if not files:
        raise UnsupportedStoreError(
            f"{entries[0]}: no file of the DLedger log is there; take it from a backup, or take"
            " another member's store. A log in another place (storePathDLedgerCommitLog) is named"
            " by --broker-conf or --dledger-log"
        )
    for each in list_row(commit_logs):
        if each.start_offset < files[0].start_offset:
            continue
        if any(read_piece(each.path, 0, _HEAD_BYTES)):
            raise SourceError(
                f"{each.path}: has records at offsets of the DLedger log: a broker was"
                " started here without enableDLegerCommitLog; take the store from a backup"
            )
    return entries


def refuse_member(root: Path, why: str) -> None:
    """Raise UnsupportedStoreError for the store of a member, with the reason."""
    if (member := member_directory(root)) is not None:
        raise UnsupportedStoreError(f"{member}: a member of a DLedger group: {why}")
