# SPDX-License-Identifier: Apache-2.0
"""Where a new wheel is written to: what may be there before, what a stopped write leaves, and what
may be replaced.

A write makes a store; it never adds to one. What is replaced is only what a write made and no
broker has opened since: whatever waits in a store that was in use is not ours to throw away.
"""

import json
from typing import Any

from message_store.base.errors import TargetError
from message_store.files.small_files import read_small_file, replace_file
from message_store.files.store_root import StoreRoot
from migrate.report.conversion_marker import CONVERSION_NAME
from migrate.report.finished_target import WRITTEN_NAME
from migrate.table.wheel_staging import WriteRun
from migrate.write.publishing import (
    PublishingNote,
    begin_publishing,
    forbid_start,
    is_published,
    is_publishing,
    publish,
    refuse_links,
    remove_unfinished,
    require_unused,
    signs_of_use,
)
from migrate.write.row_output import create_row
from migrate.write.staging import (
    Staging,
    clear,
    clear_staging,
    make_directory,
    no_broker,
    remove_file,
    sole_writer,
    write_note,
)

CONF_NAME = "broker.conf"


def begin_write(run: WriteRun, *, overwrite: bool) -> None:
    """Refuse a target that must not be written to; then see to it that no broker starts on it
    before it is whole.

    Raises TargetError.
    """
    make_directory(run.target)
    with sole_writer(run.staging.target), no_broker(run.staging.target):
        require_free(run.staging, overwrite=overwrite)
        create_row(run.directory, count=0, file_bytes=0)
        if not _marker_exists(run.staging.target):
            forbid_start(run.staging)


def require_free(staging: Staging, *, overwrite: bool) -> None:
    """Raise TargetError unless a store may be made here, or the one that is here replaced."""
    target = staging.target
    refuse_links(staging)
    if (target.own / CONVERSION_NAME).exists() or staging.plan_file.exists():
        raise TargetError(f"{target.path}: belongs to a conversion; choose another directory")
    if not _marker_exists(target):
        require_unused(staging)
        _finish_stopped(staging)
    if not _marker_exists(target):
        return
    if not overwrite:
        raise TargetError(
            f"{target.path}: already holds a written wheel; mode overwrite replaces it as long as"
            " no broker has opened it"
        )
    if used := signs_of_use(target):
        raise TargetError(
            f"{target.path}: was opened since it was written ({', '.join(used)} is there); what"
            " waits in it would be lost, so it is not overwritten"
        )


def begin_anew(staging: Staging) -> None:
    """Remove what a commit that was stopped has made, its marker first. Raises TargetError."""
    remove_file(staging.path / WRITTEN_NAME)
    clear(staging.store.path)


def prepare_marker(staging: Staging, facts: dict[str, Any]) -> None:
    """Lay the marker aside, for whoever comes after a stop between publishing and its end."""
    write_note(staging.path / WRITTEN_NAME, json.dumps(facts, indent=1).encode())


def withdraw_marker(staging: Staging) -> None:
    """From here on the store that was here is being replaced, and counts as unfinished. The note
    that its files may be replaced comes first. Raises TargetError.
    """
    note = PublishingNote.read(staging)
    is_there = _marker_exists(staging.target) or (note is not None and note.replaces)
    begin_publishing(staging, replaces=is_there)
    remove_file(staging.target.own / WRITTEN_NAME)


def finish_write(staging: Staging) -> None:
    """Put up the marker that says complete, and tidy up. Raises TargetError."""
    content = read_small_file(staging.path / WRITTEN_NAME)
    if content is None:
        raise TargetError(f"{staging.path / WRITTEN_NAME}: is gone; write again")
    replace_file(staging.target.own / WRITTEN_NAME, content)
    clear_staging(staging)


def give_up(run: WriteRun) -> None:
    """Remove what this write laid aside, and all of it where nothing else was begun."""
    staging = run.staging
    clear(run.directory)
    others = staging.path / "writes"
    if others.is_dir() and any(others.iterdir()):
        return
    if _marker_exists(staging.target):
        clear_staging(staging)
    elif not is_publishing(staging):
        remove_unfinished(staging)


def _finish_stopped(staging: Staging) -> None:
    """A write that was stopped behind its last rename is whole, and only lacks its marker."""
    is_moved = not staging.store.commit_log.exists() and is_published(staging)
    if is_moved and (staging.path / WRITTEN_NAME).exists():
        publish(staging)
        finish_write(staging)


def _marker_exists(target: StoreRoot) -> bool:
    return (target.own / WRITTEN_NAME).exists()
