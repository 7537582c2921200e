# SPDX-License-Identifier: Apache-2.0
"""Large arrays lie in files without a name where that is asked for, and hold the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import TargetError
from message_store.base.parallel import parallel_map
from message_store.files import array_room
from message_store.files.array_room import (
    arrays_on_disk,
    marked_rows,
    new_array,
    row_blocks,
    rows_at,
    rows_where,
    zero_array,
)

LARGE = 1 << 18


def is_mapped(array: np.ndarray[Any, Any]) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base is not None


def test_large_arrays_lie_in_files_without_a_name_and_small_ones_in_memory(tmp_path: Path) -> None:
    with arrays_on_disk(tmp_path):
        large, small = new_array(LARGE, np.int64), new_array(8, np.int64)
        zeros = zero_array((2, LARGE), np.int32)
    assert [is_mapped(large), is_mapped(small), is_mapped(zeros)] == [True, False, True]
    assert zeros.shape == (2, LARGE)
    assert not zeros.any()
    large[:] = np.arange(LARGE)
    assert int(large.sum()) == LARGE * (LARGE - 1) // 2
    assert os.listdir(tmp_path) == []
    assert not is_mapped(new_array(LARGE, np.int64))


def test_threads_give_their_arrays_the_same_room(tmp_path: Path) -> None:
    with arrays_on_disk(tmp_path):
        made = parallel_map(lambda count: new_array(count, np.int64), [LARGE] * 4)
    assert all(map(is_mapped, made))


def test_a_full_disk_is_an_error_and_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with arrays_on_disk(tmp_path), pytest.raises(TargetError, match="No space left on device"):
        new_array(LARGE, np.int64)


@pytest.mark.parametrize("call", ["open", "posix_fallocate"])
def test_where_files_need_names_arrays_stay_in_memory(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    with arrays_on_disk(tmp_path):
        monkeypatch.setattr(os, call, refuse)
        assert not is_mapped(new_array(LARGE, np.int64))


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 9))
def test_columns_are_worked_on_in_blocks(marks: list[bool], block_rows: int) -> None:
    is_marked, column = np.array(marks, np.bool_), np.arange(100, 100 + len(marks))
    wanted = np.flatnonzero(is_marked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_room, "_BLOCK_ROWS", block_rows)
        assert rows_where(len(marks), lambda rows: is_marked[rows]).tolist() == wanted.tolist()
        assert marked_rows(column, is_marked).tolist() == column[wanted].tolist()
        assert rows_at(column, wanted[::-1]).tolist() == column[wanted[::-1]].tolist()
    numbers = range(len(marks))
    blocks = [each for rows in row_blocks(len(marks), block_rows) for each in numbers[rows]]
    assert blocks == list(numbers)
