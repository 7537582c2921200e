# SPDX-License-Identifier: Apache-2.0
"""delayOffset.json as a broker keeps it: the table, its data version, and the copy before it.

A broker writes it ten seconds after its start, every ten seconds from then on, and when it stops.
4.9 writes a new file beside the old one, 5.3 writes over it, later ones move the old one away
first; all leave the text before as `.bak`. Here each file is replaced in one step, or, where only
the process may die and the text did not become shorter, written over in one: a stop at any point
leaves a main file that can be read.
"""

from collections.abc import Mapping
from pathlib import Path

import attrs

from legacy_levels.delay_offsets import (
    FILE_NAME,
    DataVersion,
    DelayOffsets,
    encode_delay_offsets,
)
from message_store.files.small_files import read_small_file, replace_file, write_over
from message_store.files.store_root import StoreRoot
from message_store.format.dialect import Dialect

UPDATES_A_VERSION = 200
"""So many deliveries make a new data version (`delayOffsetUpdateVersionStep`)."""


class OffsetsWriter:
    """Writes the table of one store.

    ``text`` is what the main file holds, None when there is none; ``is_durable`` says that it is
    known to be on the disk.
    """

    def __init__(self, root: Path, dialect: Dialect, found: DelayOffsets, now_ms: int) -> None:
        self._path = StoreRoot(root).config_file(FILE_NAME)
        self._dialect = dialect
        self._version = found.main.data_version or DataVersion(timestamp_ms=now_ms)
        self._updates = 0
        self._lengths: dict[Path, int] = {}
        self._is_torn = found.main.problem is not None
        self.text = read_small_file(self._path)
        self.is_durable = self.text is None

    def count(self, deliveries: int, now_ms: int) -> None:
        """So many offsets moved."""
        steps, self._updates = divmod(self._updates + deliveries, UPDATES_A_VERSION)
        if steps:
            counter = self._version.counter + steps
            self._version = attrs.evolve(self._version, counter=counter, timestamp_ms=now_ms)

    def encode(self, offsets: Mapping[int, int]) -> bytes:
        """The text for these offsets, level to queue offset."""
        return encode_delay_offsets(offsets, self._dialect.config, self._version)

    def write(self, text: bytes, *, is_durable: bool) -> None:
        """Put the text in place and the one before into `.bak`. Raises TargetError.

        A text that no broker can read is not kept: its `.bak` may be the only whole one.
        """
        if self.text not in (None, text) and not self._is_torn:
            self._put(self._path.with_name(FILE_NAME + ".bak"), self.text, is_durable)
        self._put(self._path, text, is_durable)
        self.text, self._is_torn, self.is_durable = text, False, is_durable

    def _put(self, path: Path, text: bytes, is_durable: bool) -> None:
        if is_durable or len(text) < self._lengths.get(path, len(text) + 1):
            replace_file(path, text, is_durable=is_durable)
        else:
            write_over(path, text)
        self._lengths[path] = len(text)
