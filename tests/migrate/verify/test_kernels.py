# SPDX-License-Identifier: Apache-2.0
"""The kernels' digest is that of plain Python over the scalar codec: for any record, bit by bit."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.base.errors import FormatError
from message_store.format.message import Host, StoredMessage
from message_store.format.message_codec import body_crc, decode_message_at, encode_message
from message_store.format.record_layout import MAGIC_V2
from message_store.reading.spans import BUFFER_BYTES
from migrate.verify import found as verify_found
from migrate.verify.digests.complaints import LAST_UNREADABLE, Complaint
from migrate.verify.digests.entries import BUCKETS, SOURCE_ENTRY
from migrate.verify.listing import kept_entries
from migrate.verify.tasks import DigestTask, digest

SEED = 7
MASK = 2**64 - 1
RULES = (1_700_000_000_123, 1_700_000_000_000, 1000, 172_800)


# --- the digest once more, in plain Python -------------------------------------------------------


def step_a(state: int, word: int) -> int:
    state = (state ^ word & MASK) * 0x9E3779B97F4A7C15 & MASK
    return state ^ state >> 32


def step_b(state: int, word: int) -> int:
    state = (state << 27 | state >> 37) & MASK
    state = state + (word & MASK) * 0xD6E8FEB86659FD93 & MASK
    return (state ^ state >> 29) * 0xC2B2AE3D27D4EB4F & MASK


def finish(state: int) -> int:
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


def pair_a(state: int, even: int, odd: int) -> int:
    product = (state ^ even) * (odd ^ 0x9E3779B97F4A7C15)
    return state ^ product & MASK ^ product >> 64


def pair_b(state: int, even: int, odd: int) -> int:
    product = (state ^ odd) * (even ^ 0xC2B2AE3D27D4EB4F)
    return state ^ product & MASK ^ product >> 64


def pairs_of(data: bytes) -> list[tuple[int, int]]:
    """Of the last pair a word of 8 bytes may overlap the one before it."""
    pieces = [(data[at : at + 8], data[at + 8 : at + 16]) for at in range(0, len(data) - 15, 16)]
    if left := len(data) % 16:
        last = data[-8:]
        pieces.append((data[-left:][:8], last) if left > 8 else (last, b""))
    return [(int.from_bytes(e, "little"), int.from_bytes(o, "little")) for e, o in pieces]


def both(state: tuple[int, int], *values: int | bytes) -> tuple[int, int]:
    for value in values:
        state = _both_bytes(state, value) if isinstance(value, bytes) else _both_word(state, value)
    return state


def _both_word(state: tuple[int, int], word: int) -> tuple[int, int]:
    return step_a(state[0], word), step_b(state[1], word)


def _both_bytes(state: tuple[int, int], data: bytes) -> tuple[int, int]:
    """The length, then the words by pairs."""
    a, b = _both_word(state, len(data))
    for pair in pairs_of(data):
        a, b = pair_a(a, *pair), pair_b(b, *pair)
    return a, b


def once(state: int, data: bytes) -> int:
    state = step_a(state, len(data))
    for pair in pairs_of(data):
        state = pair_a(state, *pair)
    return state


def plain_digest(message: StoredMessage, out_ms: int) -> list[int]:
    """Hash a, hash b, identity, content of a source's record."""
    state = both((SEED, ~SEED & MASK), message.body)
    body_state = state[0]
    state = both(
        state,
        message.flag << 32 | message.sys_flag & 0xFFFFFFFF,
        message.born_timestamp_ms,
        message.reconsume_times,
        *(
            host.ip + host.port.to_bytes(4, "big", signed=True)
            for host in (message.born_host, message.store_host)
        ),
    )
    text = message.properties_text
    state = both(state, *kept_entries(text), int(text.endswith(b"\x02")), out_ms, 0)
    topic = _last_value(text, b"REAL_TOPIC")
    topic_state = once(SEED, topic)
    identity = step_a(once(topic_state, _last_value(text, b"UNIQ_KEY")), message.born_timestamp_ms)
    content = step_a(body_state, topic_state)
    return [finish(state[0]), finish(state[1]), finish(identity), finish(content)]


def _last_value(text: bytes, name: bytes) -> bytes:
    values = [entry.partition(b"\x01")[2] for entry in text.split(b"\x02")]
    names = [entry.partition(b"\x01")[0] for entry in text.split(b"\x02")]
    return next(
        (v for n, v in zip(reversed(names), reversed(values), strict=True) if n == name and v), b""
    )


# --- records -------------------------------------------------------------------------------------

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.builds(
    Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), i32
)
piece = st.binary(max_size=20)
NAMES = """
DELAY TIMER_OUT_MS TIMER_ROLL_TIMES TIMER_ROLL_LABEL TIMER_DEL_UNIQKEY INNER_MULTI_DISPATCH
INNER_MULTI_QUEUE_OFFSET __CRC32# REAL_TOPIC REAL_QID UNIQ_KEY TAGS KEYS DELAYS DELA
"""
known_names = st.sampled_from(NAMES.split()).map(str.encode)
entry = st.builds(lambda name, value: name + b"\x01" + value, known_names | piece, piece) | piece
texts = st.builds(
    lambda entries, ending: b"\x02".join(entries) + ending,
    st.lists(entry, max_size=12),
    st.sampled_from([b"", b"\x02", b"\x02\x02"]),
)


@st.composite
def messages(draw: st.DrawFn) -> StoredMessage:
    born, store = draw(hosts), draw(hosts)
    body = draw(st.binary(max_size=70) | st.binary(min_size=60, max_size=200))
    bits = 0x10 * born.is_ipv6 | 0x20 * store.is_ipv6
    return StoredMessage(
        topic=draw(st.sampled_from(["SCHEDULE_TOPIC_XXXX", "other", ""])),
        body=body,
        body_crc=body_crc(body),
        properties_text=draw(texts),
        queue_id=draw(i32),
        queue_offset=draw(i64),
        commit_log_offset=draw(i64),
        born_timestamp_ms=draw(i64),
        born_host=born,
        store_timestamp_ms=draw(i64),
        store_host=store,
        flag=draw(i32),
        sys_flag=draw(i32) & ~0x30 | bits,
        reconsume_times=draw(i32),
        prepared_transaction_offset=draw(i64),
        magic=draw(st.sampled_from([-626843481, MAGIC_V2])),
    )


PLAIN = StoredMessage(
    topic="SCHEDULE_TOPIC_XXXX",
    body=b"",
    body_crc=0,
    properties_text=b"REAL_TOPIC\x01TopicA\x02REAL_QID\x010",
    queue_id=0,
    queue_offset=0,
    commit_log_offset=0,
    born_timestamp_ms=1,
    born_host=Host.of("10.0.0.1", 1),
    store_timestamp_ms=2,
    store_host=Host.of("10.0.0.2", 2),
)


@attrs.frozen(eq=False)
class Found:
    records: verify_found.Found
    complaints: dict[Complaint, int]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store") / "commitlog"
    directory.mkdir()
    return directory


def digest_log(log: Path, data: bytes, entries: list[tuple[int, int]], out_ms: int = 0) -> Found:
    (log / f"{0:020d}").write_bytes(data)
    rows = np.zeros(len(entries), SOURCE_ENTRY.dtype)
    rows["commit_log_offset"] = [offset for offset, _ in entries]
    rows["size_bytes"] = [size for _, size in entries]
    rows["out_ms"] = out_ms
    everything = np.ones(BUCKETS, bool).tobytes()
    task = DigestTask("source", log.parent, rows, len(rows), 0, SEED, RULES, buckets=everything)
    result = digest(task)
    return Found(result.found, {code: count for code, (count, _) in result.complaints.items()})


@pytest.mark.skipif(sys.byteorder == "big", reason="the plain digest reads words little-endian")
@given(st.lists(st.tuples(messages(), st.integers(0, 3)), min_size=1, max_size=4), i64)
def test_the_kernel_digests_as_plain_python_does(
    log: Path, placed: list[tuple[StoredMessage, int]], out_ms: int
) -> None:
    data = b""
    entries = []
    for message, gap in placed:
        record = encode_message(message)
        data += bytes(gap)
        entries.append((len(data), len(record)))
        data += record
    found = digest_log(log, data, entries, out_ms)
    expected = [plain_digest(message, out_ms) for message, _ in placed]
    assert found.records["digests"].tolist() == expected


@given(st.binary(max_size=300), st.integers(-5, 305), st.integers(-(2**31), 2**31 - 1))
def test_any_bytes_are_a_complaint_or_what_the_scalar_codec_reads(
    log: Path, data: bytes, offset: int, size: int
) -> None:
    found = digest_log(log, data, [(offset, size)])
    [complaint] = found.complaints
    assert complaint <= LAST_UNREADABLE or decode_message_at(data, offset, check_crc=False)


@given(messages(), st.data())
def test_a_changed_byte_is_read_as_the_scalar_codec_reads_it(
    log: Path, message: StoredMessage, data: st.DataObject
) -> None:
    record = bytearray(encode_message(message))
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= data.draw(st.integers(1, 255))
    found = digest_log(log, bytes(record), [(0, len(record))])
    changed = None
    with contextlib.suppress(FormatError):
        changed = decode_message_at(record, check_crc=False)
    if changed is None:
        # The scalar codec refuses a topic that is not UTF-8, the kernel one that is not the right.
        assert found.complaints
        return
    if changed.commit_log_offset >= 0 and changed.body_crc == body_crc(changed.body):
        assert Complaint.BODY_CRC not in found.complaints
    assert found.records["digests"].tolist() == [plain_digest(changed, 0)]


def test_records_over_several_files_and_beyond_a_buffer_are_all_read(tmp_path: Path) -> None:
    """Small ones, one larger than the reading buffer, and one behind a wide gap."""
    file_bytes = 8 << 20
    bodies = [b"a" * 100, b"b" * (BUFFER_BYTES + 5), b"c" * 3, b"d" * 1000]
    places = [0, 500, BUFFER_BYTES + 2_000, file_bytes + 300_000]
    records = [encode_message(attrs.evolve(PLAIN, body=body)) for body in bodies]
    (tmp_path / "commitlog").mkdir()
    for start in (0, file_bytes):
        content = bytearray(file_bytes)
        for place, record in zip(places, records, strict=True):
            if start <= place < start + file_bytes:
                content[place - start : place - start + len(record)] = record
        (tmp_path / "commitlog" / f"{start:020d}").write_bytes(content)
    rows = np.zeros(len(records), SOURCE_ENTRY.dtype)
    rows["commit_log_offset"] = places
    rows["size_bytes"] = [len(record) for record in records]
    everything = np.ones(BUCKETS, bool).tobytes()
    task = DigestTask("source", tmp_path, rows, len(rows), 5, SEED, RULES, buckets=everything)
    result = digest(task)
    assert result.found["number"].tolist() == [5, 6, 7, 8]
    assert result.buckets[:, 0].sum() == 4
    assert Complaint.LENGTHS not in result.complaints


@pytest.mark.parametrize(
    ("offset", "size", "complaint"),
    [
        (-1, 100, Complaint.OUTSIDE),
        (0, 2**31 - 1, Complaint.OUTSIDE),
        (2**63 - 50, 100, Complaint.OUTSIDE),
        (-(2**63), 100, Complaint.OUTSIDE),
        (0, 0, Complaint.SIZE),
        (0, -5, Complaint.SIZE),
        (0, 50, Complaint.SIZE),
        (1, 150, Complaint.SIZE),
        (4096, 100, Complaint.OUTSIDE),
        (4090, 100, Complaint.OUTSIDE),
        (3000, 100, Complaint.SIZE),
    ],
)
def test_an_entry_that_leads_to_no_record_is_told_from_one_that_does(
    log: Path, offset: int, size: int, complaint: Complaint
) -> None:
    data = encode_message(PLAIN).ljust(4096, b"\0")
    assert digest_log(log, data, [(offset, size)]).complaints == {complaint: 1}


def test_only_the_topics_asked_for_are_counted(log: Path) -> None:
    texts = [b"REAL_TOPIC\x01" + topic for topic in (b"TopicA", b"TopicB", b"TopicA")]
    records = [encode_message(attrs.evolve(PLAIN, properties_text=text)) for text in texts]
    (log / f"{0:020d}").write_bytes(b"".join(records))
    rows = np.zeros(3, SOURCE_ENTRY.dtype)
    sizes = [len(record) for record in records]
    rows["commit_log_offset"] = np.cumsum([0, *sizes[:2]])
    rows["size_bytes"] = sizes
    task = DigestTask(
        "source", log.parent, rows, len(rows), 0, SEED, RULES, topics=("TopicA", "other")
    )
    result = digest(task)
    assert result.buckets[:, 0].sum() == 2
    assert result.complaints[Complaint.LEFT_OUT] == (1, (1,))
