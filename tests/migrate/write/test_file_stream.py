# SPDX-License-Identifier: Apache-2.0
"""What goes through a stream is what lies in the file, wherever parts begin and end and however the
disk writes.
"""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_store.base.errors import TargetError
from migrate.write import large_files
from migrate.write.large_files import FileStream, create_file

FILE_BYTES = 1 << 16


def stream_all(path: Path, offset: int, pieces: list[bytes]) -> None:
    """Write the pieces, one behind the other."""
    with FileStream(path, offset) as stream:
        for piece in pieces:
            stream.room(len(piece))[:] = np.frombuffer(piece, np.uint8)
            stream.advance(len(piece))


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, FILE_BYTES), max_size=12),
    parts=st.lists(st.integers(0, FILE_BYTES), max_size=3),
    backwards=st.booleans(),
)
def test_parts_of_any_size_in_any_order_make_the_file(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], parts: list[int], backwards: bool
) -> None:
    directory = tmp_path_factory.mktemp("row")
    create_file(directory / f"{0:020d}", FILE_BYTES)
    content = np.random.default_rng(7).integers(0, 256, FILE_BYTES, np.uint8).tobytes()
    bounds = sorted({0, FILE_BYTES, *parts})
    runs = list(itertools.pairwise(bounds))
    path = directory / f"{0:020d}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_files, "_STREAM_BYTES", 8192)
        for begin, end in reversed(runs) if backwards else runs:
            marks = sorted({begin, end, *(cut for cut in cuts if begin < cut < end)})
            pieces = [content[one:other] for one, other in itertools.pairwise(marks)]
            stream_all(path, begin, pieces)
    assert path.read_bytes() == content


def test_a_disk_that_cannot_write_directly_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_file(tmp_path / f"{0:020d}", FILE_BYTES)
    real_open = os.open

    def refuse_direct(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument", path)
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse_direct)
    monkeypatch.setattr(large_files, "_STREAM_BYTES", 4096)
    content = bytes(range(256)) * 100
    stream_all(tmp_path / f"{0:020d}", 1000, [content])
    written = (tmp_path / f"{0:020d}").read_bytes()
    assert written[1000 : 1000 + len(content)] == content
    assert not any(written[:1000])
    assert not any(written[1000 + len(content) :])


def test_a_stream_into_nothing_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="00000000000000000000"):
        FileStream(tmp_path / f"{0:020d}", 0)
