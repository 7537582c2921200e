# SPDX-License-Identifier: Apache-2.0
"""The manifest of a RocksDB database, which says of which tables it consists.

RocksDB takes a manifest that lost its end for an older one. It then reads the logs of changes that
are still there, also where tables with earlier changes were lost with that end, and reports
nothing. So whoever writes notes how long the manifest is and its checksum.
"""

import errno
import os
import zlib
from pathlib import Path

import attrs

from message_store.files.small_files import read_piece, read_small_file

POINTER = "CURRENT"
"""The file that names the manifest."""
MANIFEST_PREFIX = "MANIFEST-"
_PIECE_BYTES = 1 << 20


@attrs.frozen
class ManifestNote:
    """A manifest up to a place: the number in its name, how many bytes, and their CRC-32."""

    number: int = 0
    size_bytes: int = 0
    checksum: int = 0


@attrs.frozen(eq=False)
class Manifest:
    """The manifest that a database would be opened by, as it is on the disk."""

    number: int
    content: bytes

    def goes_on_from(self, note: ManifestNote) -> bool:
        """Whether it is the one that was noted, or has grown since."""
        begin = self.content[: note.size_bytes]
        is_it = self.number == note.number and len(begin) == note.size_bytes
        return is_it and checksum(begin) == note.checksum


def checksum(content: bytes, before: int = 0) -> int:
    """CRC-32, going on from that of what stands before."""
    return zlib.crc32(content, before)


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a database; None where there is none, or nothing leads to it.

    Raises SourceError for a file that cannot be read.
    """
    number = _number_of(directory)
    content = None if number is None else read_small_file(_path(directory, number))
    return None if number is None or content is None else Manifest(number, content)


def note_manifest(directory: Path, known: ManifestNote) -> ManifestNote:
    """The manifest as it is now; of one that was noted before only what is new is read.

    Raises OSError and SourceError.
    """
    number = _number_of(directory)
    if number is None:
        path = directory / POINTER
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if number != known.number:
        known = ManifestNote(number)
    path = _path(directory, number)
    while more := read_piece(path, known.size_bytes, _PIECE_BYTES):
        size_bytes = known.size_bytes + len(more)
        known = ManifestNote(number, size_bytes, checksum(more, known.checksum))
    return known


def _number_of(directory: Path) -> int | None:
    name = (read_small_file(directory / POINTER) or b"").decode(errors="replace").strip()
    digits = name.removeprefix(MANIFEST_PREFIX)
    return int(digits) if name.startswith(MANIFEST_PREFIX) and digits.isdecimal() else None


def _path(directory: Path, number: int) -> Path:
    return directory / f"{MANIFEST_PREFIX}{number:06}"
