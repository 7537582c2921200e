# SPDX-License-Identifier: Apache-2.0
"""Which store roots can be opened for writing: new ones, and those that nobody left half done."""

import os

from message_store.base.errors import SourceError, TargetError, UnsupportedStoreError, reason_of
from message_store.base.printable import printable
from message_store.files.dledger import refuse_member
from message_store.files.rocksdb.queues import refuse_queue_database
from message_store.files.segments import holds_queues
from message_store.files.small_files import make_directories, sync_directory
from message_store.files.store_root import StoreRoot
from message_store.reading.engine_choice import NO_ENGINE_APPENDS
from message_store.reading.unfinished_change import refuse_unfinished_change


def refuse_unwritable(root: StoreRoot) -> None:
    """Make the directories of a new store, and raise SourceError for one that nobody can append to.

    That is UnsupportedStoreError for a known kind of store. Raises TargetError where the disk
    refuses a directory.
    """
    refuse_member(
        root.path,
        "no engine can append to its log; `delaywheel convert` moves pending messages to a wheel",
    )
    refuse_queue_database(root.path, NO_ENGINE_APPENDS)
    try:
        make_directories(root.path)
        is_new = not root.commit_log.exists() and not root.consume_queues.exists()
        has_plan = (root.staging if is_new else root.staging / "plan.json").exists()
        is_moved = (root.staging / "publishing.json").exists()
        if has_plan or (is_moved and not (root.own / "written.json").exists()):
            raise SourceError(
                f"{root.path}: an unfinished conversion; run the same convert command again"
            )
        if is_new:
            _refuse_foreign(root)
            root.commit_log.mkdir()
            sync_directory(root.path)
    except (FileExistsError, NotADirectoryError) as error:
        raise SourceError(f"{root.path}: cannot be a store: {reason_of(error)}") from error
    except OSError as error:
        raise TargetError(f"{root.path}: cannot be written to: {reason_of(error)}") from error
    root.require_readable()
    refuse_unfinished_change(root)
    for name, what in (
        ("consumequeue_ext", "extension units of consume queues (enableConsumeQueueExt)"),
        ("batchconsumequeue", "batch consume queues"),
    ):
        if holds_queues(root.path / name):
            raise UnsupportedStoreError(
                f"{root.path / name}: {what}, which can be read and converted but not appended to"
            )


def _refuse_foreign(root: StoreRoot) -> None:
    """Raise SourceError where a new store would come to lie among files of something else."""
    names = {name for name in os.listdir(root.path) if not name.startswith(".")} - {"lost+found"}
    names -= {"index", root.timer_wheel.name}  # which a broker leaves where its queues were removed
    own = (root.config, root.own, root.lock, root.checkpoint, root.abort, root.timer_log)
    if names and not names & {path.name for path in own}:
        raise SourceError(
            f"{root.path}: no store, and not empty: {printable(min(names))} is there; name an empty"
            " directory for a new store"
        )
