# SPDX-License-Identifier: Apache-2.0
"""A store root open for writing: its log, its queues, its lock, and how it begins and ends.

Both engines stand on it. It knows records and queues and no delays. One exception: as in brokers,
the entry of a level queue holds the due time in place of the tag's hash.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from message_store.base.clock import Clock, SystemClock
from message_store.base.closed_on_exit import ClosedOnExit
from message_store.base.companions import Companions
from message_store.base.errors import StoreClosedError, TargetError
from message_store.base.forks import belongs_to_this_process
from message_store.base.kinds import takes
from message_store.base.locked import LockedWhileOpen
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.live_segments import LiveSegments
from message_store.files.small_files import identity_of, require_same_directory
from message_store.files.store_lock import StoreLock
from message_store.files.store_root import StoreRoot
from message_store.files.unsynced import GroupSync
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import LONG_MAX
from message_store.format.properties import HALF_TOPIC, WAITING_TOPICS
from message_store.writing.checkpoint import LiveCheckpoint
from message_store.writing.log import LiveLog
from message_store.writing.losses import (
    LogEndNote,
    StoreEnds,
    StoreLosses,
    note_log_file_bytes,
    noted_log_file_bytes,
    refuse_lost_beginnings,
    refuse_lost_end,
)
from message_store.writing.pages_ahead import PagesAhead
from message_store.writing.queue import LiveQueue
from message_store.writing.queue_set import QueueSet
from message_store.writing.queued import QueuedReader
from message_store.writing.recovery import Extent, Recovery, recover, survey
from message_store.writing.retention import LiveRetention
from message_store.writing.settings import StoreSettings
from message_store.writing.topics import LiveTopic, merge_topics
from message_store.writing.writable import refuse_unwritable

BeforeRecovery = Callable[["LiveStore", Extent], None]
"""Called when log and queues were read, before anything is changed."""

_BEHIND_BYTES = 64 << 20
_BEHIND_MS = 1_000
"""So much log or time passes before a flush makes what follows from it durable too, within 3 to 5
ms. RocketMQ: flushIntervalConsumeQueue and timerFlushIntervalMs (5.5.0), both a second.
"""

_SYSTEM_TOPICS = frozenset({*WAITING_TOPICS, HALF_TOPIC})
_DEFAULTS = StoreSettings()


def _look_at_nothing(_store: "LiveStore", _extent: Extent) -> None:
    """Nothing has to be known before recovery."""


class LiveStore:
    """One store root, held by this process alone. Made by ``open``.

    Whoever reads or writes holds ``lock``. ``log`` is the commit log, ``queues`` the consume
    queues, ``levels`` the level table, ``recovery`` what opening had to do, ``losses`` what was
    missing then, ``was_clean`` whether the last user stopped orderly, ``repeats`` whether what he
    may have delivered is repeated, ``is_closed`` whether this has; ``retention`` takes what is old.
    All records before ``synced_end`` are on disk.
    """

    def __init__(
        self,
        root: StoreRoot,
        writer_lock: StoreLock,
        *,
        clock: Clock,
        dialect: Dialect,
        settings: StoreSettings,
        levels: DelayLevels,
        before_recovery: BeforeRecovery = _look_at_nothing,
        is_for_a_change: bool = False,
    ) -> None:
        self.root = root
        self.clock = clock
        self.dialect = dialect
        self.settings = settings
        self.levels = levels
        self.companions = Companions()
        self.lock = threading.RLock()
        # These two may be waited for with the store's lock held, and never the other way round.
        self._syncing = threading.RLock()
        self._writing_small_files = threading.RLock()
        self.was_clean = root.was_stopped_cleanly
        self.repeats = settings.repeat_after_kill and not self.was_clean
        self._writer_lock = writer_lock
        self.is_closed = self._is_parents = False
        self.synced_end = 0
        self._path = os.fspath(root.path)  # a Path is made a string each time it is asked about
        self._identity = identity_of(self._path)
        self._topics: dict[str, int] = {}
        self.came_in: Counter[str] = Counter()  # messages that were scheduled, by topic
        self._ends_to_note: tuple[int, StoreEnds] | None = None
        self._queues_noted = LONG_MAX  # until it is known what was lost
        self._all_written: tuple[int, int] | None = None  # by a flush: end of the log, and time
        self.log = _open_log(root, settings)
        self._queued_reader = QueuedReader(self.log)
        self.queues = QueueSet(root, settings.queue_file_bytes)
        self._checkpoint = LiveCheckpoint(root, dialect, self.log)
        self._log_end_note = LogEndNote(root)
        self.retention = LiveRetention(
            self.log, self.queues, settings.retention_ms, self._sync_log_and_queues
        )
        try:
            self.queues.load(self.log.min_offset)
            lowers = None if is_for_a_change else dialect  # a change leaves groups alone
            self.recovery, self.losses = self._recover(before_recovery, lowers)
            self._queues_noted = 0
        except BaseException:
            self.abandon()
            raise
        self._pages_ahead = PagesAhead(self.log.segments, self.log.end)
        belongs_to_this_process(self)

    def _recover(
        self, before_recovery: BeforeRecovery, lowers: Dialect | None
    ) -> tuple[Recovery, StoreLosses]:
        """Make the store one that can be appended to, durably, before anything is appended."""
        try:
            ends = StoreEnds.read(self.root)
            noted_end = -1 if ends is None or ends.begins is None else ends.log_end
            extent = survey(self.log, self.queues, self._checkpoint, self.was_clean, noted_end)
            refuse_lost_end(self.queues, extent.end)
            files_end = self.log.end
            self.log.end_at(extent.end, max(extent.last_start, 0))
            refuse_lost_beginnings(self.root, self.log, self.queues, self.levels)
            before_recovery(self, extent)
        except BaseException:
            for segments in (self.log.segments, *(queue.segments for queue in self.queues)):
                segments.restore_length()
            raise
        self.log.end_at(files_end)  # recovery looks behind the end
        self.root.sync_names()
        if not self.was_clean:
            self.root.sync_own_files()
        self.root.mark_open(self.dialect.abort_text(os.getpid()))
        note_log_file_bytes(self.root, self.log.file_bytes)
        if lowers is not None and (ends is None or ends.begins is None):  # a change leaves no note
            self._queues_noted = -1
        lacked = {} if ends is None else ends.lacking(self.queues)
        recovery = recover(self.log, self.queues, self.levels, extent, lacked, self.root, lowers)
        losses = StoreLosses.after_recovery(ends, lacked, self.queues)
        self._sync_log_and_queues()
        self._checkpoint.write(durably=True)
        return recovery, losses

    @property
    def has_lost_records(self) -> bool:
        """Whether the log, at opening, had an empty file in its middle or lacked its synced end."""
        return bool(self.recovery.lost_files) or self._checkpoint.synced_offset >= self.recovery.end

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        clock: Clock | None = None,
        dialect: Dialect = Dialect.ROCKETMQ_5_5,
        settings: StoreSettings = _DEFAULTS,
        level_table: DelayLevels | None = None,
        before_recovery: BeforeRecovery = _look_at_nothing,
    ) -> "LiveStore":
        """Open the store at ``path`` for writing, and make it when nothing is there.

        A store that was not stopped cleanly is recovered first. ``before_recovery`` is called when
        log and queues were read and nothing was changed; an error that it raises leaves the store
        unchanged. Raises StoreLockedError when somebody has the store open, TargetError when the
        disk refuses. Raises SourceError, and UnsupportedStoreError, for a store that cannot be
        written to, and changes nothing then.
        """
        root = StoreRoot(path)
        refuse_unwritable(root)
        writer_lock = root.take_lock()
        try:
            return cls(
                root,
                writer_lock,
                clock=clock or SystemClock(),
                dialect=dialect,
                settings=settings,
                levels=level_table or DelayLevels.parse(),
                before_recovery=before_recovery,
            )
        except BaseException:
            writer_lock.release()
            raise

    # --- queues and topics ------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> LiveQueue:
        """The consume queue of a topic, to be appended to; see ``QueueSet.queue``."""
        return self.queues.queue(topic, queue_id)

    def first_of_others(self, own: str) -> int:
        """Where the first record is that may wait in a topic of other engines; the end if none."""
        return self.queues.first_record({*WAITING_TOPICS} - {own}, self.log.end)

    def topic(self, name: str) -> LiveTopic:
        """A topic's queues, for reading; one that has no messages reads as empty."""
        return LiveTopic(name, self.log, self.queues, self._queued_reader, self.reading)

    def remember_topic(self, name: str, queue_id: int) -> None:
        """See to it that topics.json knows this queue, from the next flush on."""
        if self._topics.get(name, 0) <= queue_id and name not in _SYSTEM_TOPICS:
            self._topics[name] = queue_id + 1

    def write_topics(self) -> None:
        """Put the topics to be remembered into topics.json. Raises TargetError."""
        with self.reading():
            topics = dict(self._topics)
        if not topics:
            return
        with self._writing_small_files:
            if not self.is_closed:  # by another thread, which has written them then
                merge_topics(self.root, topics, self.dialect)
        with self.lock:
            left = self._topics.items() - topics.items()
            self._topics = dict(left)

    def reading(self) -> LockedWhileOpen:
        """Hold the lock of a store that is open; raises StoreClosedError for one that is not."""
        return LockedWhileOpen(self.lock, self.require_open)

    @contextmanager
    def all_or_broken(self) -> Iterator[None]:
        """Around an append to the log and the queue entries or indexes that follow it.

        If anything stops it in between, the log holds records that no queue knows, and a second
        try would repeat them. So the log is broken until the store is opened again and recovered.
        """
        count = self.log.append_count
        try:
            yield
        except BaseException:
            self.break_if_appended(count)
            raise

    def break_if_appended(self, append_count: int) -> None:
        """Break the log if anything was appended since its ``append_count`` was this."""
        if self.log.append_count != append_count:
            self.log.break_off()

    def require_in_place(self) -> None:
        """Raise TargetError when the store's directory was moved or removed while it was open.

        A new directory must not be made in its place: it would get the other half of the store.
        The moved one has everything so far, and is recovered as after a kill.
        """
        try:
            require_same_directory(self._path, self._identity)
        except OSError as error:
            self.log.break_off()
            raise TargetError(str(error.strerror)) from error

    def require_open(self) -> None:
        """Raise StoreClosedError when the store was closed."""
        if self._is_parents:
            raise StoreClosedError("the store belongs to the process that this one was forked from")
        if self.is_closed:
            raise StoreClosedError("the store is closed")

    # --- durability -------------------------------------------------------------------------------

    def sync_log(self) -> int:
        """Return when every record appended so far is on disk: where the last of them ends. The
        lock is held for a moment only. Raises TargetError: nothing can be appended then until the
        store is opened again, because nobody knows what is on disk.
        """
        log = self.log
        with self.lock:
            self.require_open()
            log.require_unbroken()
            self.require_in_place()
            unsynced = log.begin_sync()
            last_start, end = log.last_start, log.end
            if len(self.queues) > self._queues_noted:
                self._ends_to_note = len(self.queues), StoreEnds.of(end, self.queues)
        self.sync_or_break(unsynced.finish)
        self._checkpoint.log_is_synced(last_start)
        self.synced_end = max(self.synced_end, end)
        return end

    def sync_queues(self) -> None:
        """The same for every queue entry."""
        with self.lock:
            self.require_open()
            self.log.require_unbroken()
            dirty = [queue for queue in self.queues if queue.segments.is_dirty]
            last_start = self.log.last_start
        for queue in dirty:
            with self.reading():
                unsynced = queue.begin_sync()
            self.sync_or_break(unsynced.finish)
        self._checkpoint.queues_are_synced(last_start)
        self._note_ends()

    def _sync_log_and_queues(self) -> None:
        self.sync_log()
        self.sync_queues()

    def _note_ends(self) -> None:
        """Note which queues there are, which are synced, so that one that is lost is missed."""
        with self.lock:
            note, self._ends_to_note = self._ends_to_note, None
        if note is None:
            return
        count, ends = note
        with self._writing_small_files:
            if not self.is_closed and count > self._queues_noted:
                ends.write(self.root)
                self._queues_noted = count

    def sync_or_break(self, work: Callable[[], None]) -> None:
        """Do ``work``, which makes something durable; when it fails, the log is broken.

        The kernel reports a lost write to one handle of a file only, and the next sync succeeds.
        So syncs run one at a time, and nothing counts as durable after one that failed. Raises
        TargetError.
        """
        with self._syncing:
            try:
                work()
            except TargetError:
                self.log.break_off()
                raise
            if self.log.is_broken:
                self.require_open()  # a close beside this, which ends the log, synced all there was
            self.log.require_unbroken()

    def write_checkpoint(self, *, durably: bool = False) -> None:
        """Write to `checkpoint` how much was synced; the lock is not held during the sync."""
        with self.lock:
            self.require_open()
            self.log.require_unbroken()
            self._checkpoint.write()
            unsynced = self._checkpoint.begin_sync() if durably else None
        if unsynced is not None:
            self.sync_or_break(unsynced.finish)

    def clean(self, now_ms: int, keep_from: int, make_known: Callable[[], None]) -> list[Path]:
        """Let retention remove old files; see ``LiveRetention.clean``. Raises StoreClosedError."""
        with self.reading():
            return self.retention.clean(now_ms, keep_from, make_known)

    def flush(self) -> None:
        """Sync log, queues, topics and checkpoint, in this order: all that engines share."""
        self._sync_log_and_queues()
        self.write_topics()
        self.write_checkpoint(durably=True)

    def flush_all_next(self) -> None:
        """Something was written that the log does not tell: the log alone is no flush."""
        self._all_written = None

    def group(self, flush_all: Callable[[], None]) -> GroupSync:
        """A flush that many threads may call at once: they share the work. After each, a background
        thread prepares log pages for what is stored until the next.

        The log tells everything, so to sync it is a flush. What is rebuilt from the log after a
        crash becomes durable behind it, by ``flush_all``: so that there is little to rebuild.
        """

        def flush_and_look_ahead() -> None:
            with self.lock:
                now, last = (self.log.end, self.clock.now_ms()), self._all_written
                self.companions.begin_flush()
            if last is not None and _is_near(last, now):
                self.sync_log()
                if self._topics:
                    self.write_topics()
            else:
                self._all_written = now  # from here on ``flush_all_next`` is for the next
                try:
                    flush_all()
                except BaseException:
                    self._all_written = None
                    raise
            with self._writing_small_files:
                if not self.is_closed:
                    self._log_end_note.put(self.synced_end)
            self.companions.flush()
            with self.lock:
                may_look = not (self.is_closed or self.log.is_broken)
                pages = self._pages_ahead.next(self.log.end) if may_look else None
            if pages is not None:
                pages.find_in_a_thread()

        return GroupSync(flush_and_look_ahead)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, mark the store as stopped cleanly, and release it; closing twice is fine.

        After a failed write the store is released as after a kill: the next opening recovers it.
        Raises TargetError when the last flush fails.
        """
        with self.lock:
            if self.is_closed:
                return
            try:
                if not self.log.is_broken:
                    self.companions.begin_flush()
                    self.flush()
                    self.companions.flush(is_last=True)
                    self._checkpoint.write_last()
                    with self._writing_small_files:
                        self._queues_noted = LONG_MAX  # nobody writes older ones over them
                        StoreEnds.of(self.log.end, self.queues).write(self.root)
                        self._log_end_note.remove()
                    self.root.mark_stopped()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Release everything and write nothing more, as a kill would."""
        with self.lock:
            if self._is_parents:
                return
            # Whoever writes small files does so under the store's lock file.
            with self._writing_small_files:
                self.is_closed = True
            self.log.break_off()
            self.companions.let_go()
            self._checkpoint.close()
            self._log_end_note.close()
            self.queues.close()
            self.log.segments.close()
            self._writer_lock.release()

    def leave_to_parent(self) -> None:
        """In a forked child: closed, and nothing of it touched."""
        self.lock = threading.RLock()  # another thread of the parent may have held it
        self.is_closed = self._is_parents = True


class EngineOnFiles(ClosedOnExit):
    """What every engine has that stands on such a root, ``live``; consumer groups ask for it."""

    live: LiveStore

    @property
    def clock(self) -> Clock:
        """What stamps its records."""
        return self.live.clock

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever reads or writes."""
        return self.live.lock

    @property
    def companions(self) -> Companions:
        """What is kept beside it."""
        return self.live.companions

    @takes(name=str)
    def topic(self, name: str) -> LiveTopic:
        """A topic's queues, for reading."""
        with self.live.reading():
            return self.live.topic(name)

    def unplaced_offsets(self) -> Int64s:
        """Where records lie that wait in a queue to be placed; most engines place at once."""
        return int64s([])


def _is_near(last: tuple[int, int], now: tuple[int, int]) -> bool:
    """Whether little log and little time lie between two moments; a clock may go back."""
    bytes_between, ms_between = now[0] - last[0], now[1] - last[1]
    return 0 <= bytes_between < _BEHIND_BYTES and 0 <= ms_between < _BEHIND_MS


def _open_log(root: StoreRoot, settings: StoreSettings) -> LiveLog:
    """The log, its end not known yet."""
    segments = LiveSegments(
        root.commit_log,
        settings.commit_log_file_bytes,
        noted_bytes=noted_log_file_bytes(root),
        root=root.path,
    )
    return LiveLog(segments, segments.min_offset, 0)
