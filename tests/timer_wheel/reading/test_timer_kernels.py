# SPDX-License-Identifier: Apache-2.0
"""The kernels that read records for the wheel say what the scalar code says."""

import itertools
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_store import AfterMs, ManualClock, Message, StoredMessage
from message_store.base.errors import BadFieldError, FormatError
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import parse_long, string_hash
from message_store.format.message import LOCAL_HOST
from message_store.format.message_codec import body_crc, decode_message_at, encode_message
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import SMALLEST_RECORD_BYTES
from message_store.kernels.raw_memory import address_of
from message_store.reading.consume_queue import QueueEntries
from message_store.writing.store import LiveStore
from timer_wheel.format.wheel_math import PRECISIONS_MS
from timer_wheel.reading.copies import (
    CHANGING,
    identity,
    is_copy,
    is_put_again,
    is_roll,
    records_from,
)
from timer_wheel.reading.delete_markers import is_of_cancel
from timer_wheel.reading.pending_timers import record_at
from timer_wheel.reading.record_kernel import IS_MARKER, MESSAGE, is_any_to_be_read
from timer_wheel.reading.timer_queue import (
    names_and_timed,
    timed_messages,
    to_be_placed,
    waiting_in_queue,
)
from timer_wheel.timers.copies_in_log import copies_in_log
from timer_wheel.timers.recall import Target, marker_for
from timer_wheel.timers.rows import read_facts
from timer_wheel.wheel.store import WheelStore

NAMES = [
    "TIMER_OUT_MS",
    "REAL_TOPIC",
    "UNIQ_KEY",
    "TIMER_DEL_UNIQKEY",
    "TIMER_ROLL_TIMES",
    "TIMER_OUT_MX",
    "KEYS",
    "DELAY",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
]
plain = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=9)
values = st.one_of(
    plain,
    st.integers(-5, 2**64).map(str),
    st.sampled_from(["", "+7", "-0", "0012", "TopicA", "TopicA+K", "K", "1700003600000"]),
)
entries = st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=9)
texts = st.one_of(
    entries.map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)),
    entries.map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)),
    st.text("\x01\x02=K", max_size=12),
)


def message(text: str, **changes: Any) -> StoredMessage:
    made = StoredMessage(
        topic="rmq_sys_wheel_timer",
        body=b"body",
        body_crc=body_crc(b"body"),
        properties_text=text.encode(),
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        born_timestamp_ms=1_700_000_000_000,
        born_host=LOCAL_HOST,
        store_timestamp_ms=1_700_000_000_123,
        store_host=LOCAL_HOST,
    )
    return attrs.evolve(made, **changes)


def store_of(path: Path, messages: list[StoredMessage]) -> tuple[LiveStore, list[int], list[int]]:
    store = LiveStore.open(path, clock=ManualClock(1_700_000_000_000))
    offsets, sizes = [], []
    for each in messages:
        sizes.append(len(encode_message(each)))

        def make(position: int, each: StoredMessage = each) -> bytes:
            return encode_message(attrs.evolve(each, commit_log_offset=position))

        offsets.append(store.log.append(sizes[-1], make))
    return store, offsets, sizes


@settings(deadline=None, max_examples=60)
@given(found=st.lists(texts, min_size=1, max_size=30))
def test_facts_are_those_of_the_scalar_code(
    tmp_path_factory: pytest.TempPathFactory, found: list[str]
) -> None:
    path = tmp_path_factory.mktemp("facts")
    messages = [message(text) for text in found]
    store, offsets, sizes = store_of(path, messages)
    facts = read_facts(store.log, np.array(offsets), np.array(sizes), 1000, keys=True)
    for row, each in enumerate(messages):
        properties = each.properties
        try:
            out_ms = parse_long(properties.get("TIMER_OUT_MS", ""))
        except BadFieldError:
            out_ms = -1
        assert facts.is_fine[row] == (out_ms >= 0)
        assert (row in facts.problems) == (out_ms < 0)
        assert facts.is_there[row]
        if out_ms >= 0:
            assert facts.out_ms[row] == out_ms
            assert facts.is_marker[row] == ("TIMER_DEL_UNIQKEY" in properties)
            topic = properties.get("REAL_TOPIC")
            assert facts.topic_hash[row] == (0 if topic is None else string_hash(topic))
            assert facts.store_ms[row] == each.store_timestamp_ms
            assert facts.born_ms[row] == each.born_timestamp_ms
    store.close()


@settings(deadline=None, max_examples=60)
@given(found=st.lists(texts, min_size=1, max_size=30), rng=st.randoms(use_true_random=False))
def test_entries_that_wait_are_read_as_the_scalar_code_reads_them(
    tmp_path_factory: pytest.TempPathFactory, found: list[str], rng: random.Random
) -> None:
    """Some lead astray, and some to a record of another size; they come in any order."""
    path = tmp_path_factory.mktemp("waiting")
    store, offsets, sizes = store_of(path, [message(text) for text in found])
    store.sync_log()
    places = list(zip(offsets, sizes, strict=True))
    places += [(offsets[0] + 1, 200), (10**12, 100), (-1, 100), (offsets[-1], sizes[-1] + 1)]
    rng.shuffle(places)
    units = np.zeros(len(places), QUEUE_UNIT.dtype)
    for unit, (offset, size_bytes) in zip(units, places, strict=True):
        unit["commit_log_offset"], unit["size_bytes"], unit["tags_code"] = offset, size_bytes, 1
    with SegmentReader(path / "commitlog") as log:
        root = StoreRoot(path)
        read = waiting_in_queue(root, QueueEntries(units, 7, 0), log, 0)
        records = [
            (number, *place, record)
            for number, place in enumerate(places, 7)
            if (record := record_at(log, *place)) is not None
        ]
    wanted, stopping = to_be_placed(records)
    assert [column.tolist() for column in attrs.astuple(read.timers)] == [
        column.tolist() for column in attrs.astuple(wanted)
    ]
    assert (read.blocking, read.astray_count) == (stopping, 4)
    store.close()


topics = st.sampled_from(["orders", "rmq_sys_wheel_timer", "rmq_sys_wheel_timer2"])
numbered = st.integers(0, 1 << 40)
timed = st.builds(lambda text, **kind: message(text, **kind), texts, topic=topics,
                  queue_offset=numbered)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(found=st.lists(timed, min_size=1, max_size=30), begin=st.integers(0, 29))
def test_timed_messages_of_the_log_are_those_that_the_scalar_code_finds(
    tmp_path_factory: pytest.TempPathFactory, found: list[StoredMessage], begin: int
) -> None:
    path = tmp_path_factory.mktemp("timed")
    store, offsets, _ = store_of(path, found)
    tail = offsets[begin % len(offsets)]
    store.sync_log()
    with SegmentReader(path / "commitlog") as log:
        names, timed = names_and_timed(log, 0)
        read, blocking = timed_messages(log, timed[:, timed[1] >= tail])
        records = [
            (each.queue_offset, each.commit_log_offset, size_bytes, each)
            for each, size_bytes in records_from(log, tail)
            if is_roll(each)
        ]
    wanted, stopping = to_be_placed(records)
    rows = zip(*(column.tolist() for column in attrs.astuple(wanted)), strict=True)
    assert sorted(zip(*(column.tolist() for column in attrs.astuple(read)), strict=True)) == sorted(
        rows
    )
    assert (set(blocking), len(names)) == (set(stopping), 0)
    store.close()


def test_records_that_are_not_there_are_told(tmp_path: Path) -> None:
    store, [offset], [size] = store_of(tmp_path, [message("TIMER_OUT_MS\x011\x02")])
    places = [(offset, size + 1), (offset + 1, size), (10**12, 100), (-1, 100), (offset, 0)]
    facts = read_facts(
        store.log, np.array([place for place, _ in places]), np.array([s for _, s in places]), 1000
    )
    assert not facts.is_there.any()
    assert sorted(facts.problems) == list(range(len(places)))
    store.close()


def recall_key(text: str, path: Path) -> tuple[int, int]:
    store, offsets, sizes = store_of(path, [message(text)])
    [key] = read_facts(store.log, np.array(offsets), np.array(sizes), 1000, keys=True).recall_keys()
    store.close()
    return key


def test_a_marker_and_its_target_have_one_recall_key_and_nobody_else(tmp_path: Path) -> None:
    target = "REAL_TOPIC\x01A\x02UNIQ_KEY\x01K\x02TIMER_OUT_MS\x0170000\x02"
    own = recall_key(target, tmp_path / "target")
    same = [
        "REAL_TOPIC\x01A\x02UNIQ_KEY\x01X\x02TIMER_OUT_MS\x0170000\x02TIMER_DEL_UNIQKEY\x01K\x02",
        "TIMER_DEL_UNIQKEY\x01A+K\x02REAL_TOPIC\x01A\x02TIMER_OUT_MS\x0170000\x02",
        "REAL_TOPIC\x01A\x02UNIQ_KEY\x01K\x02TIMER_OUT_MS\x0170999\x02",
    ]
    other = [
        "REAL_TOPIC\x01B\x02UNIQ_KEY\x01K\x02TIMER_OUT_MS\x0170000\x02",
        "REAL_TOPIC\x01A\x02UNIQ_KEY\x01L\x02TIMER_OUT_MS\x0170000\x02",
        "REAL_TOPIC\x01A\x02UNIQ_KEY\x01K\x02TIMER_OUT_MS\x0171000\x02",
        "REAL_TOPIC\x01A\x02UNIQ_KEY\x01K\x02TIMER_OUT_MS\x0170000\x02TIMER_DEL_UNIQKEY\x01L\x02",
        "REAL_TOPIC\x01A\x02TIMER_OUT_MS\x0170000\x02",
    ]
    for number, text in enumerate(same):
        assert recall_key(text, tmp_path / f"same{number}") == own
    for number, text in enumerate(other):
        assert recall_key(text, tmp_path / f"other{number}") != own


QUEUE_IDS = {"": 0, "3": 3, "none": 0, "-1": 0, "2147483647": 2**31 - 1, "9" * 10: 0, "9" * 40: 0}


@pytest.mark.parametrize("text", QUEUE_IDS)
def test_a_message_can_be_cancelled_whatever_its_record_says_of_its_queue(text: str) -> None:
    record = message(f"REAL_TOPIC\x01A\x02UNIQ_KEY\x01K\x02REAL_QID\x01{text}\x02")
    marker, _ = marker_for(Target(record, 70_000, 71_000, (1, 2)), topic_in_delete_key=False)
    assert marker.queue_id == QUEUE_IDS[text]


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"x"])
def test_no_stretch_of_damage_makes_a_message_of_a_delete_marker(
    tmp_path: Path, filler: bytes
) -> None:
    """Its body would be delivered. What has no destination or no time is reported."""
    clock = ManualClock(1_700_000_000_000)
    with WheelStore.open(tmp_path, clock=clock) as made:
        made.cancel(made.schedule(Message("orders", b"late", unique_key="ORDER-42"), AfterMs(5000)))
    store = LiveStore.open(tmp_path, clock=clock)
    [_, entry] = store.queue("rmq_sys_wheel_timer", 0).units(0, 2)
    offset, size_bytes = int(entry["commit_log_offset"]), int(entry["size_bytes"])
    whole = store.log.record(offset, size_bytes)
    assert is_of_cancel(whole)
    data = encode_message(whole)
    [file] = (tmp_path / "commitlog").iterdir()
    for first, length in itertools.product(range(size_bytes), (1, 2, 4, 8, 20, 40, 52, 90, 300)):
        damaged = data[:first] + filler * min(length, size_bytes - first) + data[first + length :]
        with file.open("r+b") as log:
            log.seek(offset)
            log.write(damaged)
        facts = read_facts(store.log, np.array([offset]), np.array([size_bytes]), 1000)
        is_message = facts.is_fine[0] and facts.table[IS_MARKER, 0] == MESSAGE
        assert not is_message or not facts.topic_hash[0], (first, length)
        with suppress(FormatError):
            record = decode_message_at(damaged, 0)
            is_marker = is_of_cancel(record) or "TIMER_DEL_UNIQKEY" in record.properties
            assert is_marker or not {"REAL_TOPIC", "TIMER_OUT_MS"} <= record.properties.keys()
    store.abandon()


TOPIC_PAIRS = [("a", "b"), ("eu-orders", "us-orders"), ("A_orders", "B_orders"), ("t1", "t2")]


@pytest.mark.parametrize("precision_ms", [1, *PRECISIONS_MS])
def test_topics_that_differ_in_the_same_bits_as_their_slots_have_different_recall_keys(
    tmp_path: Path, precision_ms: int
) -> None:
    """Any two words of a topic, of a seed and of a slot may cancel each other out in a hash."""
    first_ms = 1_700_003_600_000
    texts = []
    for topic, other in TOPIC_PAIRS:
        words = [
            int.from_bytes(each.encode()[:8].ljust(8, b"\0"), "little") for each in (topic, other)
        ]
        difference = (words[0] ^ words[1]) & (1 << 40) - 1
        slot = first_ms // precision_ms
        slots = {slot, slot ^ difference, slot ^ words[0] & 0xFFFF, slot + 1, slot ^ 1}
        for name, each in itertools.product((topic, other), slots):
            out = f"TIMER_OUT_MS\x01{each * precision_ms}\x02"
            texts.append(f"REAL_TOPIC\x01{name}\x02UNIQ_KEY\x01ORDER-42\x02{out}")
    store, offsets, sizes = store_of(tmp_path, [message(text) for text in dict.fromkeys(texts)])
    facts = read_facts(store.log, np.array(offsets), np.array(sizes), precision_ms, keys=True)
    keys = facts.recall_keys()
    assert facts.is_fine.all()
    for words_of_keys in (keys, *zip(*keys, strict=True)):
        assert len(set(words_of_keys)) == len(set(texts))
    store.close()


CHANGED: dict[str, dict[str, Any]] = {
    "stored later": {"store_timestamp_ms": 5},
    "another queue offset": {"queue_offset": 9},
    "delivered": {"prepared_transaction_offset": 7},
    "stamped": {"text": "A\x011\x02B\x012\x02TIMER_ENQUEUE_MS\x015\x02TIMER_DEQUEUE_MS\x016\x02"},
    "rolled": {"text": "A\x011\x02B\x012\x02TIMER_ROLL_TIMES\x013\x02"},
    "in another order": {"text": "B\x012\x02A\x011\x02"},
    "without its level": {"text": "A\x011\x02DELAY\x013\x02B\x012\x02"},
    "from a timeline": {"text": "A\x011\x02B\x012\x02TIMER_ROLL_LABEL\x01R\x02"},
    "with its destination": {
        "text": "A\x011\x02B\x012\x02REAL_TOPIC\x01rmq_sys_wheel_timer\x02REAL_QID\x010\x02"
    },
    "with its checksum": {"text": "A\x011\x02B\x012\x02__CRC32#\x010123456789\x02"},
}
DIFFERENT: dict[str, dict[str, Any]] = {
    "another body": {"body": b"bodz", "body_crc": body_crc(b"bodz")},
    "born at another time": {"born_timestamp_ms": 5},
    "another flag": {"flag": 1},
    "consumed again": {"reconsume_times": 1},
    "another value": {"text": "A\x011\x02B\x013\x02"},
    "one more": {"text": "A\x011\x02B\x012\x02C\x01\x33\x02"},
    "one less": {"text": "A\x011\x02"},
    "another topic": {"topic": "A"},
    "another queue": {"queue_id": 1},
}


def test_an_identity_is_what_survives_delivery_and_rolling() -> None:
    own = identity(message("A\x011\x02B\x012\x02"))
    for name, changes in CHANGED.items():
        assert identity(message(**{"text": "A\x011\x02B\x012\x02", **changes})) == own, name
    for name, changes in DIFFERENT.items():
        assert identity(message(**{"text": "A\x011\x02B\x012\x02", **changes})) != own, name


copied_names = sorted(CHANGING | {"A", "KEYS", "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS"})
few = st.sampled_from(["0", "1", "17", "A", "B", "rmq_sys_wheel_timer"])
copied = st.builds(
    message,
    st.dictionaries(st.sampled_from(copied_names), few, max_size=5).map(
        lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
    ),
    topic=few,
    queue_id=st.sampled_from([0, 1, 17]),
    reconsume_times=st.sampled_from([0, 0, 0, 3]),
    prepared_transaction_offset=st.sampled_from([0, 0, 7, -1, -2, -200, -100_000]),
)


@pytest.mark.check
@given(found=st.lists(copied, min_size=2, max_size=12))
def test_copies_are_found_as_the_scalar_code_tells_them(
    tmp_path_factory: pytest.TempPathFactory, found: list[StoredMessage]
) -> None:
    store, offsets, _ = store_of(tmp_path_factory.mktemp("copies"), found)
    rows = [at for at, each in enumerate(found) if is_copy(each) or is_put_again(each)]
    for begin in (0, 1):
        copies = copies_in_log(store.log, offsets[begin], store.log.end)
        told = [each.commit_log_offset for each in copies]
        assert told == [offsets[row] for row in rows if row >= begin]
    until = [each.commit_log_offset for each in copies_in_log(store.log, 0, offsets[1])]
    assert until == [0] * (0 in rows)
    store.close()


def test_a_record_that_is_too_short_for_its_head_is_not_read_beyond_its_end() -> None:
    """A unit may lead to the last bytes of a file: what is behind them need not be memory."""
    no_memory = np.array([16], np.int64)
    for size_bytes in (SMALLEST_RECORD_BYTES, 107):
        assert is_any_to_be_read(no_memory, np.array([size_bytes], np.int64))


@pytest.mark.parametrize(
    ("size_bytes", "fill", "is_told"), [(108, 0, False), (107, 0, True), (108, 0xFF, True)]
)
def test_a_record_is_read_where_it_is_a_copy_or_has_another_size(
    size_bytes: int, fill: int, *, is_told: bool
) -> None:
    """0xFF are flags of two long addresses, and a negative number: a copy names its first."""
    buffer = np.full(256, fill, np.uint8)
    buffer[:4] = np.array([size_bytes], ">i4").view(np.uint8)
    addresses = np.array([address_of(buffer)], np.int64)
    assert is_any_to_be_read(addresses, np.array([108], np.int64)) is is_told
