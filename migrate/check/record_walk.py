# SPDX-License-Identifier: Apache-2.0
"""One walk over the records of pending entries: decoded in bulk, and one by one where unusual."""

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError
from message_store.base.printable import counted
from message_store.columns.byte_column import ByteColumn
from message_store.columns.message_batch import StoredBatch
from message_store.format import properties as names
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.interface.finding_rules import FindingRule
from message_store.reading.record_reader import NOT_THERE, Chunk, read_chunks
from migrate.check.snapshot import StoreSnapshot
from migrate.settings import DEFAULT_MAX_MESSAGE_BYTES
from migrate.table.pending_batches import decode_chunk
from migrate.write.rewrite import RECORD_MARGIN_BYTES, is_deliverable_topic

EXAMPLES = 3
"""So many records of a kind are named in a finding."""


@attrs.define
class Tally:
    """How many records of one kind there are, and the first of them."""

    count: int = 0
    examples: list[str] = attrs.field(factory=list)

    def add(self, example: str, count: int = 1) -> None:
        """Count more records; an example that is named already is not named again."""
        self.count += count
        if len(self.examples) < EXAMPLES and example not in self.examples:
            self.examples.append(example)

    def text(self) -> str:
        """The count and the first examples."""
        more = ", …" if self.count > len(self.examples) else ""
        return f"{counted(self.count, 'record')}: {'; '.join(self.examples)}{more}"


class RecordWalk:
    """Counts what is wrong with the records at ``commit_log_offset`` (sorted, int64[n]).

    A record counts under the first rule that it breaks. Subclasses say which records of a batch are
    unusual, and which rules an unusual record breaks.
    """

    no_record: ClassVar[FindingRule]
    other_size: ClassVar[FindingRule]
    other_body: ClassVar[FindingRule]

    def __init__(
        self,
        snapshot: StoreSnapshot,
        commit_log_offset: NDArray[np.int64],
        size_bytes: NDArray[Any],
    ) -> None:
        self.snapshot = snapshot
        self.commit_log_offset = commit_log_offset
        self.size_bytes = np.clip(size_bytes, 0, 2**31 - 1).astype(np.int32)

    def note(self, rule: FindingRule, row: int, what: str) -> None:
        """Count a record that breaks a rule."""
        raise NotImplementedError

    def unusual(self, batch: StoredBatch, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which records of a batch to look at one by one; no false negatives."""
        raise NotImplementedError

    def broken_rules(self, message: StoredMessage, row: int) -> Iterator[tuple[FindingRule, str]]:
        """The rules that a record breaks, with what was found."""
        raise NotImplementedError

    def count_topics(self, topics: ByteColumn) -> None:
        """Take in the real topics of some records."""

    def walk(self) -> None:
        """Read every record once, in the order of the log."""
        for chunk in read_chunks(self.snapshot.log, self.commit_log_offset, self.size_bytes):
            self._walk_chunk(chunk)

    def _walk_chunk(self, chunk: Chunk) -> None:
        sizes = self.size_bytes[chunk.first : chunk.end]
        decoded = decode_chunk(chunk, sizes)
        for row, problem in decoded.problems.items():
            rule = self.other_size if row in decoded.other_sizes else self.other_body
            rule = rule if _is_record(chunk, row) else self.no_record
            self.note(rule, chunk.first + row, problem)
        if not len(decoded.rows):
            return
        batch, rows = decoded.batch, chunk.first + decoded.rows
        self.count_topics(batch.property(names.REAL_TOPIC))
        for index in np.flatnonzero(self.unusual(batch, rows)).tolist():
            self._look_at(batch.message(index), int(rows[index]))

    def _look_at(self, message: StoredMessage, row: int) -> None:
        for rule, what in self.broken_rules(message, row):
            self.note(rule, row, what)
            return


def _is_record(chunk: Chunk, row: int) -> bool:
    """Whether a record lies there, of whatever size, and with whatever body."""
    address = int(chunk.buffer_offsets[row])
    if address == NOT_THERE:
        return False
    try:
        decode_message_at(chunk.buffer.data, address, check_crc=False)
    except FormatError:
        return False
    return True


def undeliverable(topics: ByteColumn) -> NDArray[np.bool_]:
    """Which of these topics no broker delivers to; each different one is judged once."""
    values, codes = encoded(topics)
    is_bad = np.array([not is_deliverable_topic(topic) for topic in values], np.bool_)
    return np.asarray(is_bad[codes])


def encoded(column: ByteColumn) -> tuple[list[bytes], NDArray[np.int32]]:
    """The different values of a column, and for each row which of them it is."""
    table = column.to_arrow().dictionary_encode()
    # Not to_numpy: that loads pandas, which takes seconds.
    codes = np.frombuffer(table.indices.buffers()[1], np.int32, len(table))
    return table.dictionary.to_pylist(), codes


def largest_record_bytes(max_message_bytes: int | None) -> int:
    """The largest record that a wheel reads."""
    return (max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES) + RECORD_MARGIN_BYTES
