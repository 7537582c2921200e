# SPDX-License-Identifier: Apache-2.0
"""How long log and queues were when they were last synced, and what of that is missing now.

A queue whose file was removed looks like one that never had more, and a log that was cut short like
one that ended there. Ends are noted only when they are on disk, and brokers only make log and
queues longer. So a shorter log or queue is damage and no loss of power. A shorter queue is rebuilt
from the log. A shorter log is refused: its lost part may have delivered or cancelled messages.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import attrs

from message_store.base.errors import SourceError
from message_store.base.printable import shell_word
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader, segment_name
from message_store.files.small_files import (
    InPlaceFile,
    read_small_file,
    remove_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.format.checkpoint import LOG_END
from message_store.format.delay_levels import DelayLevels
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.record_layout import SMALLEST_RECORD_BYTES
from message_store.reading.commit_log import find_log_end
from message_store.reading.indexed_end import places_behind
from message_store.writing.dispatch import Dispatcher
from message_store.writing.log import LiveLog
from message_store.writing.queue_set import ENDS_NAME, QueueSet

LOG_END_NAME = "log-end"
LOG_FILE_NAME = "log-file-bytes.json"


@attrs.frozen
class StoreEnds:
    """Where the log ended; the next and the first queue offset of each queue, by topic and id.
    ``begins`` is None where no note has them.
    """

    log_end: int
    queues: Mapping[tuple[str, int], int]
    begins: Mapping[tuple[str, int], int] | None = None

    @classmethod
    def of(cls, log_end: int, queues: QueueSet) -> Self:
        """The ends of an open store; level queues have a mark of their own."""
        noted = {
            (queue.topic, queue.queue_id): queue
            for queue in queues
            if queue.topic != LEVEL_TOPIC and queue.max_offset
        }
        ends = {name: queue.max_offset for name, queue in noted.items()}
        begins = {name: queue.first_offset for name, queue in noted.items()}
        return cls(log_end, ends, begins)

    @classmethod
    def read(cls, root: StoreRoot) -> Self | None:
        """The ends that were last written down; None where no readable note is."""
        log_end = LogEndNote.read(root)
        try:
            facts: Any = json.loads(read_small_file(root.own / ENDS_NAME) or b"")
            ends, begins = (
                None
                if rows is None
                else {(str(name), int(number)): int(at) for name, number, at in rows}
                for rows in (facts["queues"], facts.get("begins"))
            )
            return cls(max(int(facts["log_end"]), log_end or 0), ends or {}, begins)
        except (ValueError, KeyError, TypeError, OverflowError):
            return None if log_end is None else cls(log_end, {})

    @classmethod
    def forget_beyond(cls, root: StoreRoot, log_end: int) -> None:
        """Before a log is cut back to ``log_end`` on purpose: remove the notes of a later end, as
        damage would be taken from them. Raises TargetError.
        """
        noted = cls.read(root)
        if noted is not None and noted.log_end > log_end:
            for name in (ENDS_NAME, LOG_END_NAME):
                remove_file(root.own / name, is_durable=True)

    def write(self, root: StoreRoot) -> None:
        """Write them down, durably. Raises TargetError."""
        ends, begins = (
            rows and [[topic, queue_id, at] for (topic, queue_id), at in rows.items()]
            for rows in (self.queues, self.begins)
        )
        text = json.dumps({"log_end": self.log_end, "queues": ends, "begins": begins})
        replace_file(root.own / ENDS_NAME, text.encode())

    def lacking(self, queues: QueueSet) -> dict[tuple[str, int], int]:
        """How many of these entries each queue lacks at its end; only queues that lack some."""
        ends = {name: queues.find(*name) for name in self.queues}
        lacking = {
            name: self.queues[name] - (queue.max_offset if queue else 0)
            for name, queue in ends.items()
        }
        return {name: count for name, count in lacking.items() if count > 0}


def refuse_lost_beginnings(
    root: StoreRoot, log: LiveLog, queues: QueueSet, levels: DelayLevels
) -> None:
    """Raise SourceError where a queue has lost its first files, though the log has their records.

    Retention too removes first files, and then has removed their records before.
    """
    ends = StoreEnds.read(root)
    for queue in queues:
        begin = noted_begin(ends, queue.topic, queue.queue_id)
        if begin is None or queue.topic == LEVEL_TOPIC:  # which has a mark of its own
            continue
        if not queue.segments.starts or queue.first_offset <= begin:
            continue
        stop = queue.first_record_of_files(log.end)
        if stop <= log.min_offset:
            continue
        lost_ids = Dispatcher(log, queues, levels).queue_ids(queue.topic, log.min_offset, stop)
        if queue.queue_id in lost_ids:
            told = told_as_beheaded(queue.segments.directory, queue.first_offset, begin)
            raise SourceError(f"{told}; nothing was changed")


def noted_begin(ends: StoreEnds | None, topic: str, queue_id: int) -> int | None:
    """The first queue offset of a queue when that was last noted; None where no note says. Each
    store has a note from its first opening on. A queue that is not in it was made since, and began
    at 0.
    """
    begins = None if ends is None else ends.begins
    return None if begins is None else begins.get((topic, queue_id), 0)


def told_as_beheaded(directory: Path, begins: int, began: int) -> str:
    """What is said of a queue that lost its first files."""
    return (
        f"{directory}: the queue begins at {begins:,}, and began at {began:,}: its first files are"
        " lost. Take them from a backup, or remove this directory to have the queue rebuilt"
    )


@attrs.frozen
class StoreLosses:
    """The entries that queues lacked when a store was opened.

    ``entries`` counts those that each queue lacked, by topic and queue id, ``rebuilt`` how
    many of them were rebuilt from the log.
    """

    entries: Mapping[tuple[str, int], int] = attrs.field(factory=dict)
    rebuilt: Mapping[tuple[str, int], int] = attrs.field(factory=dict)

    @classmethod
    def after_recovery(
        cls,
        ends: StoreEnds | None,
        lacked: Mapping[tuple[str, int], int],
        queues: QueueSet,
    ) -> Self:
        """Compare a recovered store with its noted ends; ``lacked`` is from before recovery."""
        if ends is None:
            return cls()
        lacking = ends.lacking(queues)
        rebuilt = {name: count - lacking.get(name, 0) for name, count in lacked.items()}
        return cls(lacked, rebuilt)


_PAGE_BYTES = 4_096


def cut_log(root: StoreRoot) -> str | None:
    """A sentence about the end that the log of a store has lost; None without a loss.

    Looks at the lengths of files and at two places of the log; of a broker's store at the last
    entries of each queue. After a loss it reads that file, up to its last record. Raises
    SourceError.
    """
    ends = StoreEnds.read(root)
    if ends is None or ends.log_end <= 0:
        return _lost_end(root, in_lost_files=True)
    with open_log(root) as log:
        last_byte = ends.log_end - 1
        segment = log.segment_at(last_byte)
        if segment is None:
            known = [each for each in log.segments if each.start_offset <= last_byte]
            if log.segments and not known:  # retention has taken it
                return None
            end = known[-1].start_offset + known[-1].length_bytes if known else 0
            return _sentence(root, log, ends.log_end, end)
        start = segment.start_offset
        # The last bytes of a record hold its topic or properties, and are never all zeros.
        tail_bytes = min(SMALLEST_RECORD_BYTES, ends.log_end - start)
        is_full = ends.log_end == start + log.file_bytes
        tail = log.read_at(ends.log_end - tail_bytes, tail_bytes)
        if log.has_data_at(start) and (is_full or any(tail)):
            return None
        end = find_log_end(log, from_offset=start).log_end
        return _sentence(root, log, ends.log_end, end)


def damaged_places(root: StoreRoot) -> tuple[int, ...]:
    """The log offsets in the last file that was synced at which no whole record begins, where one
    should. Walks that file. Raises SourceError.
    """
    ends = StoreEnds.read(root)
    if ends is None or ends.log_end <= 0:
        return ()
    with open_log(root) as log:
        segment = log.segment_at(ends.log_end - 1)
        if segment is None:
            return ()
        start = segment.start_offset
        return find_log_end(log, from_offset=start, known_end=ends.log_end).damaged_places


def require_whole_log(root: StoreRoot) -> None:
    """Raise SourceError where the log ends before the end that was written down."""
    told = cut_log(root)
    if told is not None:
        raise SourceError(f"{told}; {way_out(root)}")


def refuse_cut_log(root: StoreRoot, log_end: int) -> None:
    """Raise SourceError where a log whose records end at ``log_end`` was longer when it was synced.

    To be called before anything is written to the store.
    """
    ends = StoreEnds.read(root)
    if ends is None or ends.log_end <= log_end:
        return
    with open_log(root) as log:
        told = _sentence(root, log, ends.log_end, log_end)
    raise SourceError(f"{told}; {way_out(root)}; nothing was changed")


def refuse_lost_end(queues: QueueSet, log_end: int) -> None:
    """Raise SourceError as ``refuse_cut_log``, and where queues of a broker's store that was
    stopped cleanly lead behind the log's end.
    """
    refuse_cut_log(queues.root, log_end)
    if (told := _lost_end(queues.root, in_lost_files=False)) is not None:
        raise SourceError(f"{told}; {way_out(queues.root)}; nothing was changed")


def _lost_end(root: StoreRoot, *, in_lost_files: bool) -> str | None:
    """A sentence about the end that the log of a broker's store has lost that was stopped cleanly,
    by its queues (``places_behind``). A store that was opened here has notes that say more.
    """
    if not root.was_stopped_cleanly or noted_log_file_bytes(root) is not None:
        return None
    with open_log(root) as log:
        behind = places_behind(root.path, log, in_lost_files=in_lost_files)
        if len(behind) < 2 or not log.file_bytes:
            return None
        start = behind[0] - behind[0] % log.file_bytes
        last = log.segments[-1].start_offset if log.segments else 0
        end = find_log_end(log, from_offset=min(start, last)).log_end
    return (
        f"{root.commit_log / segment_name(start)}: the log ends at {end:,}, and queues lead to"
        f" records up to {behind[-1]:,}: its last bytes are lost"
    )


def way_out(root: StoreRoot) -> str:
    """The remedy for an operator. A file that was itself cut short gets its length back first: an
    engine refuses a record that goes on behind the end of its file.
    """
    paths = [path for name in (ENDS_NAME, LOG_END_NAME) if (path := root.own / name).exists()]
    steps = [f"remove {' and '.join(map(str, paths))}"] if paths else []
    if root.was_stopped_cleanly and not paths:  # only queues tell
        steps.append(f"`touch {shell_word(str(root.abort))}`, as after a kill,")
    wanted = noted_log_file_bytes(root)
    with open_log(root) as log:
        last = log.segments[-1] if log.segments else None
    if last is not None and wanted is not None and last.length_bytes < wanted:
        steps.insert(0, f"`truncate -s {wanted} {shell_word(str(last.path))}`")
    return (
        f"take the log from a backup; or {' and '.join(steps)} to go on without these bytes: what"
        " was scheduled there is lost, what was delivered or cancelled there may be delivered again"
    )


def _sentence(root: StoreRoot, log: SegmentReader, noted_end: int, log_end: int) -> str:
    start = (noted_end - 1) // log.file_bytes * log.file_bytes if log.file_bytes else 0
    path = root.commit_log / segment_name(start)
    if len(log.segments) == 1 and log.file_bytes % _PAGE_BYTES:  # the only file was itself cut
        path = log.segments[0].path
    return (
        f"{path}: the log ends at {log_end:,}, and {noted_end:,} was synced: its last"
        f" {noted_end - log_end:,} bytes are lost"
    )


def noted_log_file_bytes(root: StoreRoot) -> int | None:
    """The size of the store's log files as it was noted; None where no readable note is."""
    try:
        facts: Any = json.loads(read_small_file(root.own / LOG_FILE_NAME) or b"")
        return int(facts["log_file_bytes"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def note_log_file_bytes(root: StoreRoot, file_bytes: int) -> None:
    """Write down the size of the store's log files, durably: the only file of a log, once it is cut
    short, does not tell it any more. Raises TargetError.
    """
    if noted_log_file_bytes(root) != file_bytes:
        text = json.dumps({"log_file_bytes": file_bytes})
        replace_file(root.own / LOG_FILE_NAME, text.encode())


_pack_log_end = LOG_END.packer.pack


class LogEndNote:
    """Writes down where the log ended at a flush that synced nothing else.

    The checkpoint names what has its queue entries as well, which are synced more seldom. Never
    synced itself: after a loss of power it may tell of an earlier end.
    """

    def __init__(self, root: StoreRoot) -> None:
        self._root = root
        self._file: InPlaceFile | None = None
        self._end = -1

    def put(self, log_end: int) -> None:
        """The log is on the disk up to there. Raises TargetError."""
        if log_end <= self._end:
            return
        if self._file is None:
            self._file = InPlaceFile(self._root.own / LOG_END_NAME)
        self._file.write(_pack_log_end(log_end, ~log_end))
        self._end = log_end

    @staticmethod
    def read(root: StoreRoot) -> int | None:
        """The end that was noted; None where no readable note is."""
        content = read_small_file(root.own / LOG_END_NAME) or b""
        if len(content) != LOG_END.size:
            return None
        found = LOG_END.decode_at(content, 0)
        return found["log_end"] if found["log_end"] == ~found["complement"] else None

    def remove(self) -> None:
        """Remove it, durably: ``StoreEnds`` were written that say as much. Raises TargetError."""
        self.close()
        path = self._root.own / LOG_END_NAME
        if path.exists():
            remove_file(path, is_durable=True)

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        if self._file is not None:
            self._file.close()
