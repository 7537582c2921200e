# SPDX-License-Identifier: Apache-2.0
"""Where the progress of groups is written down: consumerOffset.json, and a journal of our own.

consumerOffset.json is RocketMQ's. It has one offset for each queue, below which all messages are
done, and is written behind the records that it speaks of. The journal, ``delaywheel/consumers``,
has a line for each acknowledgement since then, one for many that lie one behind another. A broker
ignores it.

An offset in consumerOffset.json that no line names was written by somebody else, and then counts.
So does it that an entry is missing there, once ours has been there: somebody removed it, with the
topic or the group.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    GROUPS,
    ConsumerOffsets,
    GroupConfig,
    groups_value,
    is_offset_file,
    read_config,
    read_consumer_offsets,
    replace_config,
    with_consumer_offsets,
)
from message_store.files.group_journal import (
    GivenBack,
    Progress,
    QueueKey,
    ack_line,
    ack_lines,
    begun_line,
    entry_line,
    number_line,
    parse_journal,
    saved_line,
    start_line,
)
from message_store.files.line_journal import LineJournal, encode_line
from message_store.files.store_root import StoreRoot
from message_store.format.broker_json import ConfigDialect, JsonObject


class Run(NamedTuple):
    """Messages one behind another, from queue offset ``first`` to ``last``; the last one's
    identity.
    """

    queue: QueueKey
    first: int
    last: int
    identity: int


class OffsetFiles:
    """Both files of one store. Whoever calls holds the store's lock, but for ``save``.

    ``root`` is the store. ``problems`` says what was damaged when they were opened. With
    ``is_only_read`` nothing is written: what is noted is known in memory alone. Raises SourceError
    and TargetError.
    """

    def __init__(
        self, root: StoreRoot, dialect: ConfigDialect, *, is_only_read: bool = False
    ) -> None:
        self.root = root
        self._dialect = dialect
        self._journal = LineJournal(root.group_journal, is_only_read=is_only_read)
        self._journaled = parse_journal(self._journal.lines)
        text = read_config(root.path, CONSUMER_OFFSETS)
        self._json_is_damaged = bool(text.problems)
        tells_all = not text.problems and is_offset_file(root.path)
        self._json = {
            QueueKey(group, topic, queue_id): offset
            for (topic, group), queues in read_consumer_offsets(root.path).items()
            for queue_id, offset in queues.items()
        }
        self._may_have = {key: {offset} for key, offset in self._json.items()}
        self.problems = list(text.problems)
        if self._journal.has_damage:
            self.problems.append(f"{root.group_journal}: damaged, and read up to there")
        self._numbers = {key: number for number, key in enumerate(self._journaled)}
        self._entered = {key for key, noted in self._journaled.items() if noted.has_entry}
        self._removed = self._entered - self._json.keys() if tells_all else set()
        self._may_be_unsynced = False

    @property
    def size_bytes(self) -> int:
        """How long the journal is."""
        return self._journal.size_bytes

    def keys(self) -> set[QueueKey]:
        """Every queue of which either file knows."""
        return (self._journaled.keys() - self._removed) | self._json.keys()

    # --- what is known ----------------------------------------------------------------------------

    def find(self, key: QueueKey) -> Progress | None:
        """How far a group has come in a queue; None where nothing was ever noted.

        ``saved`` is empty where the journal has to be begun anew for this queue.
        """
        noted, offset = self._journaled.get(key), self._json.get(key)
        if key in self._removed:
            return None
        if noted is None:
            return None if offset is None else Progress(offset, {})
        is_ours = offset is None or self._json_is_damaged or offset in noted.saved
        if is_ours:
            return attrs.evolve(noted, saved=noted.saved | {noted.start})
        assert offset is not None
        is_ahead = offset >= max(noted.saved | {noted.start})
        if not is_ahead:  # somebody set it back
            return Progress(offset, {})
        return Progress(offset, noted.acked, begun=noted.begun)

    # --- noting -----------------------------------------------------------------------------------

    def begin(self, key: QueueKey, progress: Progress, *, is_saved: bool) -> None:
        """Note where a group begins in a queue that the journal did not know, or knew otherwise."""
        number = self._numbers.get(key, len(self._numbers))
        lines = [start_line(number, progress.start, is_saved=is_saved)]
        lines += ack_lines(number, progress.acked)
        lines += [begun_line(number, at, record) for at, record in progress.begun.items()]
        self._append_of(key, lines)

    def seek(self, key: QueueKey, offset: int) -> None:
        """Note that a group goes on at this offset."""
        self._append_of(key, [start_line(self._numbers.get(key, len(self._numbers)), offset)])

    def ack(self, runs: Iterable[Run]) -> None:
        """Note the acknowledgements of these messages; all or none."""
        numbers = self._numbers
        lines = [ack_line(numbers[queue], last, first, crc) for queue, first, last, crc in runs]
        self._append(lines)

    def give_back(self, key: QueueKey, queue_offset: int, record: GivenBack) -> None:
        """Note that this record will be stored now, and the message acknowledged then."""
        self._append([begun_line(self._numbers[key], queue_offset, record)])

    def _append_of(self, key: QueueKey, lines: Iterable[str]) -> None:
        """Add lines of a queue, behind the one that numbers it where that is not there yet."""
        if key in self._numbers and key not in self._removed:
            self._append(lines)
            return
        number = self._numbers.get(key, len(self._numbers))
        self._append([number_line(number, key), *lines])  # all that was noted before is over
        self._numbers[key] = number  # not before: a disk that refused has no such line
        if key in self._removed:
            self._removed.remove(key)
            self._entered.remove(key)

    def _append(self, lines: Iterable[str]) -> None:
        self._journal.append([encode_line(line) for line in lines])

    # --- durability -------------------------------------------------------------------------------

    def begin_sync(self) -> int | None:
        """See ``LineJournal.begin_sync``."""
        return self._journal.begin_sync()

    def sync(self, handle: int | None) -> None:
        """See ``LineJournal.sync``."""
        self._journal.sync(handle)

    def begin_save(self, queues: Mapping[QueueKey, Progress]) -> dict[QueueKey, int]:
        """Shorten the journal to the state of ``queues``; returns the offsets that ``save`` takes.

        From here on both the offsets that consumerOffset.json has and those that it will have are
        known as ours. What was noted of other queues stays.
        """
        lines = []
        noted = {**self._journaled, **queues}
        # Numbers stay: if the replacement fails, what is added may come behind either file.
        for key, number in self._numbers.items():
            progress = noted[key]
            lines.append(number_line(number, key))
            if key in self._entered:
                lines.append(entry_line(number, progress.start))
            if key in self._removed:
                continue
            if key in queues:  # a save that fails leaves either of them
                progress.is_saved_beside(self._may_have.setdefault(key, set()))
            lines += [saved_line(number, offset) for offset in sorted(progress.saved)]
            lines.append(start_line(number, progress.start))
            lines += ack_lines(number, progress.acked)
            lines += [begun_line(number, at, record) for at, record in progress.begun.items()]
        self._journal.replace(encode_line(line) for line in lines)
        return {key: progress.start for key, progress in queues.items()}

    def save(self, offsets: Mapping[QueueKey, int], groups: Iterable[str]) -> None:
        """Put these offsets into consumerOffset.json, and the groups into subscriptionGroup.json.

        Entries of others stay. Raises SourceError and TargetError.
        """
        self._add_groups(groups)
        text = read_config(self.root.path, CONSUMER_OFFSETS)
        changed: ConsumerOffsets = {}
        for key, offset in offsets.items():
            changed.setdefault((key.topic, key.group), {})[key.queue_id] = offset
        value = with_consumer_offsets(text.value, changed)
        if value != text.value or text.problems or self._may_be_unsynced:
            self._may_be_unsynced = True
            replace_config(self.root.path, CONSUMER_OFFSETS, value, self._dialect, text)
            self._may_be_unsynced = False
        self._may_have |= {key: {offset} for key, offset in offsets.items()}

    def note_entries(self, offsets: Mapping[QueueKey, int]) -> None:
        """Note that ``save`` has put these offsets there: an entry that is missing from here on was
        removed. Not before: a kill in between would look like that.
        """
        new = [key for key in offsets if key in self._numbers and key not in self._entered]
        if new:
            self._append([entry_line(self._numbers[key], offsets[key]) for key in new])
            self._entered.update(new)

    def _add_groups(self, groups: Iterable[str]) -> None:
        text = read_config(self.root.path, GROUPS)
        known = text.value.get("subscriptionGroupTable")
        entries: JsonObject = dict(known) if isinstance(known, dict) else {}
        missing = [GroupConfig.default(name) for name in groups if name not in entries]
        if missing:
            fresh = groups_value(missing, self._dialect)
            added = fresh["subscriptionGroupTable"]
            assert isinstance(added, dict)
            value: JsonObject = {**fresh, **text.value, "subscriptionGroupTable": entries | added}
            replace_config(self.root.path, GROUPS, value, self._dialect, text)

    def close(self) -> None:
        """Give the journal back; closing twice is fine."""
        self._journal.close()
