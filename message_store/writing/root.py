# SPDX-License-Identifier: Apache-2.0
"""Opening what lies under a store root for writing: what is refused, the log's files, the queues.

A broker has one size of queue file for all queues and refuses to start on another, so new queues
take the size of those that are there.
"""

from collections.abc import Callable
from pathlib import Path

from message_store.base.errors import SourceError, TargetError, UnsupportedStoreError
from message_store.files.live_segments import LiveSegments
from message_store.files.segments import list_directories, list_segments
from message_store.files.small_files import make_directories, sync_directory
from message_store.files.store_root import StoreRoot
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.reading.unfinished_change import refuse_unfinished_change
from message_store.writing.log import LiveLog
from message_store.writing.queue import LiveQueue
from message_store.writing.settings import StoreSettings

Queues = dict[tuple[str, int], LiveQueue]
"""By topic and queue id."""


def refuse_unwritable(root: StoreRoot) -> None:
    """Raise SourceError (UnsupportedStoreError where it is a kind of store that we know) for a
    directory that we cannot append to; make one that is not there. Raises TargetError where the
    disk refuses that.
    """
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
            root.commit_log.mkdir()
            sync_directory(root.path)
    except (FileExistsError, NotADirectoryError) as error:
        raise SourceError(f"{root.path}: cannot be a store: {error.strerror}") from error
    except OSError as error:
        raise TargetError(f"{root.path}: cannot be written to: {error.strerror}") from error
    root.require_readable()
    refuse_unfinished_change(root)
    for name, what in (
        ("consumequeue_ext", "extension units of consume queues (enableConsumeQueueExt)"),
        ("batchconsumequeue", "batch consume queues"),
    ):
        if _has_segments(root.path / name):
            raise UnsupportedStoreError(
                f"{root.path / name}: {what}, which can be read and converted but not appended to"
            )


def _has_segments(directory: Path) -> bool:
    return any(
        list_segments(queue)
        for topic in list_directories(directory)
        for queue in list_directories(topic)
    )


def open_log(root: StoreRoot, settings: StoreSettings) -> LiveLog:
    """The log, its end not known yet."""
    segments = LiveSegments(root.commit_log, settings.commit_log_file_bytes, root=root.path)
    return LiveLog(segments, segments.min_offset, 0)


def queue_directories(root: StoreRoot) -> list[tuple[str, int, Path]]:
    """Topic, queue id and place of every queue; names that are no queue ids are passed over."""
    return [
        (topic.name, int(queue.name), queue)
        for topic in list_directories(root.consume_queues)
        for queue in list_directories(topic)
        if queue.name.isascii() and queue.name.isdigit() and str(int(queue.name)) == queue.name
    ]


def queue_file_bytes(root: StoreRoot, settings: StoreSettings) -> int:
    """The size of a queue file: that of one that is there, else what the settings say. Raises
    SourceError for one that can be nobody's.
    """
    for _, _, directory in queue_directories(root):
        lengths = [segment.length_bytes for segment in list_segments(directory)]
        if lengths and lengths[0] % QUEUE_UNIT.size:
            raise SourceError(
                f"{directory}: a file of {lengths[0]} bytes, no multiple of {QUEUE_UNIT.size}: it"
                " was cut short; take it from a backup, or remove it, and it is made again"
            )
        if lengths and lengths[0]:
            return lengths[0]
    return settings.queue_file_bytes


def open_queue(
    root: StoreRoot,
    identity: tuple[int, int] | None,
    topic: str,
    queue_id: int,
    file_bytes: int,
    on_open: Callable[[], None],
) -> LiveQueue:
    """One queue, where its entries end not known yet; ``identity`` is that of the store's directory
    when it was opened, which may have been moved since. Raises SourceError for one that nobody can
    append to.
    """
    directory = root.consume_queue(topic, queue_id)
    segments = LiveSegments(
        directory, file_bytes, root=root.path, root_identity=identity, on_open=on_open
    )
    if segments.starts and segments.file_bytes != file_bytes:
        raise SourceError(
            f"{directory}: files of {segments.file_bytes} bytes, where other queues have"
            f" {file_bytes}"
        )
    return LiveQueue(topic, queue_id, segments)
