# SPDX-License-Identifier: Apache-2.0
"""The progress of all groups of one store: in memory, and where the store has files, in those.

An acknowledgement outlives the process when ``ack`` returns, and a loss of power after the store's
``flush``. Offsets go to consumerOffset.json behind the records that they speak of.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import compress

from consumer_groups.offset_files import OffsetFiles, Run
from consumer_groups.progress import QueueProgress
from consumer_groups.received import Acknowledgement, Received, is_given_back, runs_of
from consumer_groups.stores import GroupStore
from message_store.base.errors import FormatError, StoreClosedError
from message_store.files.group_journal import Acked, GivenBack, Progress, QueueKey
from message_store.format.message import StoredMessage
from message_store.interface.queued_messages import identity_of
from message_store.redelivery.lineage import first_offset

SAVE_EVERY_MS = 5_000
"""How often a flush writes consumerOffset.json. RocketMQ: flushConsumerOffsetInterval (5.5.0)."""

_MOST_JOURNAL_BYTES = 4 << 20
"""A journal longer than this is shortened by the next flush."""

_MOST_ACKED = 100_000
"""After so many acknowledgements the store is flushed, so that memory and journal stay small.
Messages one behind another that are acknowledged together count as one.
"""

NextRecord = Callable[[int], StoredMessage | None]
"""The record at a commit log offset, or the next one behind it."""


class ProgressTable:
    """A companion of its store; whoever calls holds the store's lock.

    ``files`` and ``next_record`` are of a store that has files. ``problems`` says what was damaged
    in them. Raises SourceError and TargetError.
    """

    def __init__(
        self, store: GroupStore, files: OffsetFiles | None, next_record: NextRecord | None
    ) -> None:
        self._store = store
        self._next_record = next_record
        self._queues: dict[QueueKey, QueueProgress] = {}
        self._writing = threading.RLock()  # may be waited for with the store's lock held
        self._is_closed = False
        self._offsets: dict[QueueKey, int] = {}
        self._saved: dict[QueueKey, int] = {}
        self._saves = 0
        self._written = 0
        self._save_next_ms: int | None = None
        self._acked_since_flush = 0
        self._files = files
        self.problems = [] if self._files is None else self._files.problems
        # A message that was given back, and whose acknowledgement is not on disk: queue, offset.
        self._unsynced: dict[tuple[QueueKey, int], GivenBack] = {}
        self._durable: tuple[tuple[QueueKey, int], ...] = ()
        self._resolve()

    def _resolve(self) -> None:
        """See now what became of each message that was given back before a kill: later another may
        have taken the record that tells.
        """
        if self._files is not None:
            for key in sorted(self._files.keys()):
                noted = self._files.find(key)
                if noted is not None and noted.begun:
                    self.find(key)

    def require_open(self) -> None:
        """Raise StoreClosedError when the store was closed."""
        if (live := self._store.live) is not None:
            live.require_open()
        if self._is_closed:
            raise StoreClosedError("the store is closed")

    def known_queues(self, group: str) -> set[QueueKey]:
        """The queues in which a group has begun, in memory or in the files."""
        keys = self._queues.keys() | (set() if self._files is None else self._files.keys())
        return {key for key in keys if key.group == group}

    def group_names(self) -> set[str]:
        """Every group that has begun somewhere."""
        keys = self._queues.keys() | (set() if self._files is None else self._files.keys())
        return {key.group for key in keys}

    # --- progress ---------------------------------------------------------------------------------

    def find(self, key: QueueKey) -> QueueProgress | None:
        """The progress of a group in a queue; None where it has not begun there."""
        self.require_open()
        known = self._queues.get(key)
        if known is not None or self._files is None:
            return known
        found = self._files.find(key)
        if found is None:
            return None
        acked = self._still_there(key, found.acked)
        given_back = self._given_back(key, found.begun)
        first, end = self._store.topic(key.topic).ranges().get(key.queue_id, (0, 0))
        if not found.saved or len(acked) < len(found.acked):  # else a later one vouches for those
            known_acks = Progress(found.start, acked, begun=given_back)
            self._files.begin(key, known_acks, is_saved=not found.saved)
        if found.start > end:  # the records behind it were lost: what comes there is new
            self._files.begin(key, Progress(end, {}), is_saved=False)
            found = Progress(end, {}, {end})
        self._unsynced |= {(key, at): record for at, record in given_back.items()}
        done = acked | {at: Acked(at, record.identity) for at, record in given_back.items()}
        progress = self._queues[key] = QueueProgress(found.start, done)
        progress.cut(first)
        return progress

    @property
    def looked_at(self) -> int:
        """How many messages were looked at: the same number as before tells of a round that found
        nothing.
        """
        return sum(progress.next_offset for progress in self._queues.values())

    def next_visible_ms(self) -> int | None:
        """When the first of all messages in flight can be received again; None if none is."""
        times = (progress.next_visible_ms for progress in self._queues.values())
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def begin(self, key: QueueKey, offset: int) -> QueueProgress:
        """Let a group begin at this offset of a queue in which it has not begun."""
        if self._files is not None:
            self._files.begin(key, Progress(offset, {}), is_saved=False)
        progress = self._queues[key] = QueueProgress(offset)
        return progress

    def seek(self, key: QueueKey, offset: int) -> None:
        """Let a group go on at another offset. What is in flight there is forgotten."""
        progress = self.find(key)
        if progress is None:
            self.begin(key, offset)
            return
        if self._files is not None:
            self._files.seek(key, offset)
        for each in [each for each in self._unsynced if each[0] == key]:
            del self._unsynced[each]
        # A flush that has begun knows nothing of what is given back from here on.
        self._durable = tuple(each for each in self._durable if each[0] != key)
        self._offsets.pop(key, None)
        progress.move_to(offset, {})

    def _still_there(self, key: QueueKey, acked: dict[int, Acked]) -> dict[int, Acked]:
        """The acknowledgements of records that a loss of power did not take: it takes the end of a
        queue, so the last that is as it was vouches for all before it.
        """
        topic = self._store.topic(key.topic)
        first = topic.ranges().get(key.queue_id, (0, 0))[0]
        for last in sorted(acked, reverse=True):
            if last < first or self._is_same(key, last, acked[last].identity):
                return {at: each for at, each in acked.items() if at <= last}
        return {}

    def _is_same(self, key: QueueKey, queue_offset: int, identity: int) -> bool:
        message = self._message(key, queue_offset)
        return message is not None and identity_of(message) == identity

    def _message(self, key: QueueKey, queue_offset: int) -> StoredMessage | None:
        """The message at a queue offset; None where there is none, or none that can be read."""
        try:
            found = self._store.topic(key.topic).read(key.queue_id, queue_offset, 1)
        except FormatError:
            return None
        return found[0] if found and found[0].queue_offset == queue_offset else None

    def _given_back(self, key: QueueKey, begun: dict[int, GivenBack]) -> dict[int, GivenBack]:
        """The messages, by queue offset, whose retry or dead letter was stored, though a kill came
        before the acknowledgement: nothing else came into the log before it, and there it stays,
        whatever became of it since.
        """
        return {at: noted for at, noted in begun.items() if self._was_given_back(key, at, noted)}

    def _was_given_back(self, key: QueueKey, queue_offset: int, noted: GivenBack) -> bool:
        assert self._next_record is not None
        message, record = self._message(key, queue_offset), self._next_record(noted.log_end)
        return (
            message is not None
            and record is not None
            and identity_of(message) == noted.identity
            and record.real_topic == noted.topic != record.topic  # it waits: it was not delivered
            and first_offset(record) == record.commit_log_offset  # nor rolled
            and is_given_back(record, message, noted.reconsume_times)
        )

    def ack(self, group: str, messages: Sequence[Received]) -> Acknowledgement:
        """Acknowledge these messages for a group: written down first, then known. Raises
        TargetError.
        """
        self.require_open()
        runs, never = runs_of(messages, group), 0
        if not all(map(self._is_in_flight, runs)):
            answers = [self._is_open(runs_of([message], group)[0]) for message in messages]
            never = answers.count(None)
            runs = runs_of(list(compress(messages, answers)), group)
        if runs:
            self._ack_runs(runs)
        count = sum([run.last - run.first + 1 for run in runs])
        return Acknowledgement(count, len(messages) - count - never, never)

    def _ack_runs(self, runs: Sequence[Run]) -> None:
        if self._files is not None:
            self._files.ack(runs)
        for run in runs:
            self._queues[run.queue].ack(run.first, run.last, run.identity)
            if self._unsynced:  # of a try that the disk refused
                for queue_offset in range(run.first, run.last + 1):
                    self._unsynced.pop((run.queue, queue_offset), None)
        self._acked_since_flush += len(runs)

    def _is_in_flight(self, run: Run) -> bool:
        """Whether the group works on all of it."""
        progress = self._queues.get(run.queue)
        return progress is not None and progress.are_in_flight(run.first, run.last + 1)

    def _is_open(self, run: Run) -> bool | None:
        """Whether a message may be acknowledged; None where the group never received it. One whose
        time was over, or that a seek took from its holder, may be.
        """
        progress, at = self.find(run.queue), run.last
        if progress is None:
            return None
        if progress.is_done(at) or progress.are_in_flight(at, at + 1):
            return not progress.is_done(at)
        return True if self._is_same(run.queue, at, run.identity) else None

    def give_back(
        self, key: QueueKey, message: StoredMessage, record: StoredMessage, *, is_synced: bool
    ) -> None:
        """Note that ``record`` will be stored now, and ``message`` acknowledged then; durably where
        ``is_synced`` says so. Raises TargetError.
        """
        live = self._store.live
        if self._files is not None and live is not None:
            identity, times = identity_of(message), record.reconsume_times
            noted = GivenBack(identity, times, record.topic, live.log.end)
            self._files.give_back(key, message.queue_offset, noted)
            if is_synced:  # one small file, with the store's lock held
                self._files.sync(self._files.begin_sync())
            self._unsynced[key, message.queue_offset] = noted

    def gave_back(self, key: QueueKey, message: StoredMessage) -> None:
        """The record is stored, which acknowledges the message. That is written down when the
        record is on disk: else a loss of power would leave an acknowledgement without a record.
        """
        progress = self.find(key)
        assert progress is not None
        progress.ack(message.queue_offset, message.queue_offset, identity_of(message))
        self._acked_since_flush += 1

    @property
    def wants_flush(self) -> bool:
        """Whether there were many acknowledgements since the last flush."""
        return self._acked_since_flush >= _MOST_ACKED

    # --- durability -------------------------------------------------------------------------------

    def begin_flush(self) -> None:
        """See ``Companion``; whoever calls holds the store's lock."""
        self._offsets = {key: progress.offset for key, progress in self._queues.items()}
        self._durable = tuple(
            (key, at)
            for key, at in self._unsynced
            if key in self._queues and self._queues[key].is_done(at)
        )

    def flush(self, *, is_last: bool) -> None:
        """See ``Companion``. Only ``close`` calls it with the store's lock held."""
        if self._files is None:
            return
        with self._store.lock:
            if self._is_closed:
                return
            self._acked_since_flush = 0
            self._acknowledge_durable()
            saving = self._begin_save() if self._is_save_due(is_last=is_last) else None
            handle = self._files.begin_sync()
        self._files.sync(handle)
        if saving is not None:
            with self._writing:
                if not self._is_closed:
                    self._save(*saving)
            self._note_saved(saving[1])

    def _note_saved(self, offsets: Mapping[QueueKey, int]) -> None:
        """Not while writing: whoever closes holds the store's lock, and waits for that."""
        assert self._files is not None
        with self._store.lock:
            if self._is_closed:
                return
            self._files.note_entries(offsets)
            handle = self._files.begin_sync()
        self._files.sync(handle)

    def _acknowledge_durable(self) -> None:
        """Write down the acknowledgements of what was given back before ``begin_flush``."""
        assert self._files is not None
        runs = [
            Run(key, at, at, self._unsynced[key, at].identity)
            for key, at in self._durable
            if (key, at) in self._unsynced
        ]
        if runs:
            self._files.ack(runs)
            for run in runs:
                del self._unsynced[run.queue, run.first]

    def _is_save_due(self, *, is_last: bool) -> bool:
        """Whether offsets changed, and are to be written now."""
        assert self._files is not None
        now_ms, next_ms = self._store.clock.now_ms(), self._save_next_ms
        is_time = next_ms is None or not next_ms - SAVE_EVERY_MS <= now_ms < next_ms
        is_long = self._files.size_bytes > _MOST_JOURNAL_BYTES
        return (is_last or is_time or is_long) and self._offsets != self._saved

    def _begin_save(self) -> tuple[int, dict[QueueKey, int]]:
        """Write a journal that knows both the offsets before and after this save."""
        assert self._files is not None
        state = {}
        for key, progress in self._queues.items():
            synced = self._offsets.get(key, progress.saved)
            progress.forget_saved(max(progress.saved, min(synced, progress.offset)))
            begun = {at: each for (of, at), each in self._unsynced.items() if of == key}
            acked = {at: each for at, each in progress.acked.items() if at not in begun}
            state[key] = Progress(progress.saved, acked, begun=begun)
        self._saves += 1
        self._save_next_ms = self._store.clock.now_ms() + SAVE_EVERY_MS
        return self._saves, self._files.begin_save(state)

    def _save(self, number: int, offsets: dict[QueueKey, int]) -> None:
        """Write consumerOffset.json, unless another thread wrote newer offsets meanwhile."""
        assert self._files is not None
        if number > self._written:
            self._files.save(offsets, sorted({key.group for key in offsets}))
            self._written, self._saved = number, offsets

    def let_go(self) -> None:
        """See ``Companion``."""
        with self._writing:
            self._is_closed = True
            if self._files is not None:
                self._files.close()
