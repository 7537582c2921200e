# SPDX-License-Identifier: Apache-2.0
"""One file of a store is damaged while nobody has it open. No message is lost but one whose own
bytes were hit, no loss goes unreported, nothing is early or delivered twice. An open that is
refused names a file, and leaves every byte as it was.

A file is one row of ``TARGETS``: its name, where it lies, which engines have it, and which losses
its damage excuses. Add rows for other files here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from message_store import AtMs, DelayStore, ManualClock, Message, Severity
from message_store.base.errors import DelayStoreError, FormatError
from message_store.format.layout import Layout
from message_store.format.message_codec import decode_message_at, record_size_at
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import HEAD_V4_V4
from tests.faults.damage import copy_store
from tests.faults.engines import ENGINES, Engine, abandon
from timer_wheel.format.timer_log import TIMER_UNIT

START_MS = 1_793_000_000_000
HALF_MS = START_MS + 20_000
END_MS = START_MS + 86_400_000
TOPICS = ("orders", "orders2")
COUNT = 40
CANCELLED = frozenset({30, 33, 36})
KINDS = ("flip", "zero", "cut", "gone")

Span = tuple[int, int]


@attrs.frozen
class Built:
    """A store that is whole, and the records of each message: its own and its delivered one."""

    path: Path
    is_closed: bool
    records: dict[int, list[Span]]


@attrs.frozen
class Target:
    """A kind of file: where it lies in a store, and which messages its damage excuses, given the
    store, the file and the bytes that were damaged; None says any, as long as it is reported.
    ``kinds`` are the kinds of damage that its format can tell.
    """

    name: str
    pattern: str
    engines: tuple[str, ...]
    excused: Callable[[Built, Path, Span], set[int]] | None
    kinds: tuple[str, ...] = KINDS


def records_hit(built: Built, file: Path, span: Span) -> set[int]:
    """Messages that have a record among damaged bytes of the log."""
    first, last = (int(file.name) + place for place in span)
    return {
        number
        for number, spans in built.records.items()
        if any(start < last and first < end for start, end in spans)
    }


def entries_hit(built: Built, file: Path, span: Span) -> set[int]:
    """Messages that a damaged entry of a consume queue leads to."""
    data = file.read_bytes()
    first = span[0] - span[0] % QUEUE_UNIT.size
    offsets = {
        QUEUE_UNIT.decode_at(data, place)["commit_log_offset"]
        for place in range(first, min(span[1], len(data) - QUEUE_UNIT.size + 1), QUEUE_UNIT.size)
    }
    return {
        number
        for number, spans in built.records.items()
        if any(start <= offset < end for start, end in spans for offset in offsets)
    }


def nothing(built: Built, file: Path, span: Span) -> set[int]:
    """No message may be lost."""
    return set()


ALL = tuple(ENGINES)
TIMERS = ("wheel", "hierarchy")
TARGETS = {
    target.name: target
    for target in (
        Target("log", "commitlog/*", ALL, records_hit),
        Target("topic queue", "consumequeue/orders/0/*", ALL, entries_hit),
        Target(
            "level queue",
            "consumequeue/SCHEDULE_TOPIC_XXXX/*/*",
            ("levels",),
            entries_hit,
            ("zero", "cut", "gone"),
        ),
        Target(
            "timer queue",
            "consumequeue/rmq_sys_wheel_timer/0/*",
            ("wheel", "hierarchy"),
            entries_hit,
        ),
        Target("timer log", "timerlog/*", ("wheel",), nothing),
        Target("topics.json", "config/topics.json", ALL, nothing),
        Target("checkpoint", "checkpoint", ALL, nothing),
        Target("queue ends", "delaywheel/queue-ends.json", ALL, nothing),
        Target("log file size", "delaywheel/log-file-bytes.json", ALL, nothing),
    )
}


# --- the store ------------------------------------------------------------------------------------


def due_ms(number: int) -> int:
    """A third is due before the store is closed."""
    return START_MS + 1_000 * (1 + number * 7 % 60)


def build(engine: Engine, path: Path, end: str) -> Built:
    """Some messages were delivered, some wait, some were taken back."""
    clock = ManualClock(START_MS)
    store = engine.open(path, clock, False)
    for number in range(COUNT):
        body = b"body %d." % number + bytes([number + 60]) * 200
        message = Message(TOPICS[number % 2], body, unique_key=f"KEY{number:03d}")
        receipt = store.schedule(message, AtMs(due_ms(number)))
        if number in CANCELLED:
            store.cancel(receipt)
        if number == COUNT // 2:
            store.flush()
    clock.tick(HALF_MS - START_MS)
    store.advance(HALF_MS)
    if end == "closed":
        store.close()
    else:
        abandon(store)
    return Built(path, end == "closed", records_of(path))


def records_of(path: Path) -> dict[int, list[Span]]:
    """Where in the log the records of each message lie, its cancellation's too."""
    found: dict[int, list[Span]] = {}
    for file in sorted((path / "commitlog").iterdir()):
        data, place = file.read_bytes(), 0
        while True:
            try:
                size = record_size_at(data, place)
                decode_message_at(data, place)
            except FormatError:
                break
            # A record that takes a message back has its key and no body.
            number = int(data[place : place + size].split(b"KEY")[-1][:3])
            start = int(file.name) + place
            found.setdefault(number, []).append((start, start + size))
            place += size
    return found


def number_of(body: bytes) -> int:
    return int(body.split(b".")[0].split()[1])


# --- the damage -----------------------------------------------------------------------------------


def damage(file: Path, kind: str, chance: random.Random) -> Span:
    """Damage a file among its first used bytes; returns which."""
    data = file.read_bytes()
    used = len(data.rstrip(b"\0"))
    place = chance.randrange(max(1, used))
    end = place + 1
    if kind == "flip":
        data = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    elif kind == "zero":
        end = min(place + chance.choice([1, 4, 8, 52, 300]), len(data))
        data = data[:place] + bytes(end - place) + data[end:]
    else:
        end = len(data)
        data = data[:place]
    if kind == "gone":
        file.unlink()
        return 0, end
    with file.open("r+b") as target:  # holes elsewhere in the store stay holes
        target.truncate(0)
        target.write(data)
    return place, end


# --- what became of it ----------------------------------------------------------------------------


@attrs.frozen
class Outcome:
    """What the topics hold in the end, and what was said of it."""

    delivered: Counter[int]
    early: set[int]
    reports: list[str]


def all_bytes(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def read_topic(store: DelayStore, topic: str, reports: list[str]) -> Iterator[int]:
    """Message by message, so that one that cannot be read hides no other."""
    place, known = 0, set()
    while place < 4 * COUNT:
        try:
            messages = store.topic(topic).read(0, place, 1)
        except DelayStoreError as error:
            reports.append(f"read: {error}")
            place += 1
            continue
        if not messages:
            return
        position = messages[0].commit_log_offset
        if position not in known:
            known.add(position)
            yield number_of(messages[0].body)
        place = max(place, messages[0].queue_offset) + 1


def used(engine: Engine, path: Path) -> Outcome:
    """Open, look, deliver what is due at once, then all; read every topic. Raises what opening
    raises.
    """
    reports: list[str] = []
    clock = ManualClock(HALF_MS)
    store = engine.open(path, clock, False)
    delivered: list[Counter[int]] = []
    try:
        for now_ms in (HALF_MS, END_MS):
            reports += [str(one) for one in store.check() if one.severity is not Severity.INFO]
            clock.tick(now_ms - clock.now_ms())
            try:
                while len(store.advance(now_ms)):
                    pass
                store.flush()
            except DelayStoreError as error:
                reports.append(f"advance: {error}")
            reports += [str(one) for one in store.check() if one.severity is not Severity.INFO]
            delivered.append(Counter(n for t in TOPICS for n in read_topic(store, t, reports)))
    finally:
        abandon(store)
    early = {number for number in delivered[0] if due_ms(number) > HALF_MS + 999}
    return Outcome(delivered[-1], early, reports)


def require_reported(
    engine: Engine, built: Built, target: Target, copy: Path, kind: str, seed: int
) -> None:
    """Damage a copy of a store, and see what becomes of it."""
    chance = random.Random(seed)
    files = [
        path
        for path in sorted(copy.glob(target.pattern))
        if path.is_file() and any(path.read_bytes())
    ]
    if not files:  # a store that was killed has not written it yet
        return
    file = chance.choice(files)
    span = damage(file, kind, chance)
    what = (target.name, file.relative_to(copy), kind, span, seed)
    before = all_bytes(copy)
    try:
        outcome = used(engine, copy)
    except DelayStoreError as error:
        refusal = str(error)
        assert all_bytes(copy) == before, what
        assert str(copy) in refusal, what
        return
    wanted = set(range(COUNT)) - CANCELLED
    lost = wanted - outcome.delivered.keys()
    came_back = outcome.delivered.keys() & CANCELLED
    doubled = {number for number, times in outcome.delivered.items() if times > 1}
    # Where a key or a topic was hit, no checksum tells.
    original = built.path / file.relative_to(copy)
    hit = set() if target.excused is None else target.excused(built, original, span)
    assert not outcome.early - hit, what
    assert not doubled - hit, (what, outcome)
    # In a queue of a store that was killed, zeros may be what a process had not written yet.
    assert not came_back - hit or outcome.reports or not built.is_closed, (what, outcome)
    assert not lost - hit or outcome.reports, (what, lost)
    assert not lost or outcome.reports or target.name == "log", (what, lost)
    if target.excused is not None and kind in ("flip", "zero") and built.is_closed:
        assert lost <= hit, (what, lost, outcome.reports)


CASES = [
    pytest.param(name, engine, id=f"{name}-{engine}")
    for name, target in TARGETS.items()
    for engine in target.engines
]
ROUNDS = [
    pytest.param(1, id="1 round"),
    pytest.param(4, id="4 rounds", marks=pytest.mark.check),
    pytest.param(100, id="100 rounds", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize(("name", "engine"), CASES)
def test_what_damage_takes_is_reported_and_nothing_else_is_lost(
    tmp_path: Path, seed: int, name: str, engine: str, end: str, rounds: int
) -> None:
    built = build(ENGINES[engine], tmp_path / "store", end)
    for number in range(rounds):
        for kind in TARGETS[name].kinds:
            copy = tmp_path / f"{number}-{kind}"
            copy_store(built.path, copy)
            require_reported(ENGINES[engine], built, TARGETS[name], copy, kind, seed + number)


@pytest.mark.parametrize(
    ("engine", "pattern", "layout", "size_field", "is_whole"),
    [
        ("levels", "consumequeue/SCHEDULE_TOPIC_XXXX/*/*", QUEUE_UNIT, "size_bytes", True),
        ("levels", "consumequeue/SCHEDULE_TOPIC_XXXX/*/*", QUEUE_UNIT, "size_bytes", False),
        ("wheel", "timerlog/*", TIMER_UNIT, "record_size_bytes", True),
        ("wheel", "timerlog/*", TIMER_UNIT, "record_size_bytes", False),
    ],
)
def test_an_entry_that_leads_to_what_was_delivered_is_not_taken_for_that(
    tmp_path: Path, engine: str, pattern: str, layout: Layout, size_field: str, is_whole: bool
) -> None:
    """The entry is damaged, and its message still waits."""
    built, later_ms = build(ENGINES[engine], tmp_path / "store", "closed"), HALF_MS + 10_000
    store = ENGINES[engine].open(built.path, ManualClock(later_ms), False)
    store.advance(later_ms)
    abandon(store)  # what it delivered, the log alone tells
    spans = {number: spans[0] for number, spans in built.records.items()}
    waits = [n for n in range(COUNT) if due_ms(n) > HALF_MS and n not in CANCELLED]
    delivered = {n for n in waits if due_ms(n) <= later_ms}
    later = [n for n in waits if n not in delivered]
    beside = [(n, each) for n in later for each in (n - 1, n + 1) if each in delivered]
    # What was stored right beside it stands between the records of its neighbours in the queue.
    pending, other = beside[0] if is_whole else (later[0], min(delivered, key=due_ms))
    first, end = spans[other]
    for file in sorted(built.path.glob(pattern)):
        data = bytearray(file.read_bytes())
        for place in range(0, len(data) - layout.size + 1, layout.size):
            fields = layout.decode_at(data, place)
            if fields["commit_log_offset"] == spans[pending][0] and fields[size_field] > 0:
                size_bytes = end - first if is_whole else 100
                fields |= {"commit_log_offset": first, size_field: size_bytes}
                data[place : place + layout.size] = layout.encode(**fields)
                file.write_bytes(data)
    outcome = used(ENGINES[engine], built.path)
    assert set(range(COUNT)) - CANCELLED - outcome.delivered.keys() <= {pending}
    assert pending in outcome.delivered or outcome.reports
    assert max(outcome.delivered.values()) == 1


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("engine", ALL)
def test_a_record_that_lies_of_its_place_hides_none_behind_it(
    tmp_path: Path, engine: str, end: str
) -> None:
    """A consumer goes on behind the place that it read."""
    built = build(ENGINES[engine], tmp_path / "store", end)
    copies = {n: spans[1] for n, spans in built.records.items() if len(spans) == 2}
    delivered = min(span for n, span in copies.items() if n % 2 and n not in CANCELLED)
    file = min((tmp_path / "store" / "commitlog").iterdir())
    with file.open("r+b") as log:
        log.seek(delivered[0] + HEAD_V4_V4.offset_of("queue_offset"))
        log.write(b"\x01")
    outcome = used(ENGINES[engine], tmp_path / "store")
    assert outcome.delivered.keys() == set(range(COUNT)) - CANCELLED
