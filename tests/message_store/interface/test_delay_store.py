# SPDX-License-Identifier: Apache-2.0
"""The values of the interface, the recall handle, and what importing them costs."""

import base64
import contextlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import message_store
from message_store import (
    AfterMs,
    AtLevel,
    AtMs,
    Cancellation,
    Delivered,
    Host,
    Receipt,
    StoredMessage,
)
from message_store.base.errors import BadFieldError
from message_store.format.recall_handle import RecallHandle
from tests.source_laws import ROOT


def test_a_level_counts_from_one_and_times_are_not_negative() -> None:
    for make in (lambda: AtLevel(0), lambda: AfterMs(-1), lambda: AtMs(-1)):
        with pytest.raises(ValueError, match="must be >="):
            make()
    assert (AtLevel(1).level, AfterMs(0).delay_ms, AtMs(0).due_ms) == (1, 0, 0)


@pytest.mark.parametrize("wrong", [1.5, 2.0, "1", None])
def test_what_is_no_whole_number_is_no_time(wrong: Any) -> None:
    for make in (AtLevel, AfterMs, AtMs):
        with pytest.raises(TypeError, match="as an integer"):
            make(wrong)
    assert AtMs(np.int64(7)).due_ms == 7  # type: ignore[arg-type]


def test_a_receipt_cannot_be_changed() -> None:
    receipt = Receipt("K", "orders", 10, 20, 0, "broker-a")
    with pytest.raises(AttributeError):
        receipt.promised_ms = 5  # type: ignore[misc]


def test_lateness_counts_from_the_promise() -> None:
    host = Host.of("127.0.0.1", 1)
    stored = StoredMessage("t", b"", 0, b"", 0, 0, 0, 0, host, 1_250, host)
    assert Delivered(stored, promised_ms=1_000).lateness_ms == 250


def test_a_cancellation_is_one_of_three() -> None:
    assert {each.name for each in Cancellation} == {
        "CANCELLED",
        "ALREADY_DELIVERED",
        "NEVER_EXISTED",
    }


def test_importing_the_ground_floor_is_light() -> None:
    program = (
        "import sys, message_store\n"
        "print(sorted({'numba', 'pyarrow', 'pyspark', 'pandas'} & set(sys.modules)))\n"
        "message_store.MessageBatch\n"
        "print('pyarrow' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == ["[]", "True"]


def test_every_exported_name_is_there_and_no_other() -> None:
    assert all(getattr(message_store, name) is not None for name in message_store.__all__)
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = message_store.Nonsense


# --- recall handles -------------------------------------------------------------------------------


@pytest.mark.check
@given(
    st.builds(
        RecallHandle,
        st.from_regex(r"[^\s]{1,20}", fullmatch=True),
        st.from_regex(r"[^\s]{1,20}", fullmatch=True),
        st.integers(-(2**63), 2**63 - 1),
        st.from_regex(r"[0-9A-F]{1,32}", fullmatch=True),
    )
)
def test_a_handle_survives_its_text(handle: RecallHandle) -> None:
    assert RecallHandle.parse(handle.text()) == handle


@pytest.mark.parametrize(
    "plain",
    ["v2 t b 1 K", "v1 t b 1", "v1 t b 1 K more", "v1 t b one K", "v1  b 1 K", ""],
)
def test_what_is_no_handle_of_version_1_is_refused(plain: str) -> None:
    with pytest.raises(BadFieldError):
        RecallHandle.parse(base64.urlsafe_b64encode(plain.encode()).decode())


@pytest.mark.check
@given(st.text(max_size=60))
def test_arbitrary_text_is_refused_or_read(text: str) -> None:
    with contextlib.suppress(BadFieldError):
        RecallHandle.parse(text)


def test_a_handle_that_could_not_be_read_back_is_not_written() -> None:
    with pytest.raises(BadFieldError, match="not fit"):
        RecallHandle("two words", "b", 1, "K").text()
