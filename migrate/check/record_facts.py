# SPDX-License-Identifier: Apache-2.0
"""What checks of records share: counts with examples, and what is asked of many records at once."""

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.printable import counted
from message_store.columns.byte_column import ByteColumn
from migrate.settings import DEFAULT_MAX_MESSAGE_BYTES
from migrate.write.rewrite import RECORD_MARGIN_BYTES, is_deliverable_topic

NAMED = 3
"""So many examples are named."""


@attrs.define
class Tally:
    """How many records of one kind, and the first of them."""

    count: int = 0
    examples: list[str] = attrs.field(factory=list)

    def add(self, example: str) -> None:
        """One more."""
        self.count += 1
        if len(self.examples) < NAMED:
            self.examples.append(example)

    def told(self) -> str:
        """The count and the first of them."""
        more = ", …" if self.count > len(self.examples) else ""
        return f"{counted(self.count, 'record')}: {'; '.join(self.examples)}{more}"


def undeliverable(topics: ByteColumn) -> NDArray[np.bool_]:
    """Which of these no broker delivers to; each different one is looked at once."""
    values, codes = encoded(topics)
    is_bad = np.array([not is_deliverable_topic(topic) for topic in values], np.bool_)
    return np.asarray(is_bad[codes])


def encoded(column: ByteColumn) -> tuple[list[bytes], NDArray[np.int32]]:
    """The different values of a column, and for each row which of them it is."""
    table = column.to_arrow().dictionary_encode()
    # Not to_numpy: that loads pandas, which takes seconds.
    codes = np.frombuffer(table.indices.buffers()[1], np.int32, len(table))
    return table.dictionary.to_pylist(), codes


def told_sizes(data: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """How long the records at these places say that they are."""
    heads = data[places[:, None] + np.arange(4)]
    return np.ascontiguousarray(heads).view(">i4")[:, 0].astype(np.int64)


def wheel_limit(max_message_bytes: int | None) -> int:
    """The largest record that a wheel reads."""
    return (max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES) + RECORD_MARGIN_BYTES
