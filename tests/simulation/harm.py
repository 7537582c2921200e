# SPDX-License-Identifier: Apache-2.0
"""A file of a random run's store is damaged while nobody has it open. Either opening refuses it and
names a file, or every loss is reported; nothing comes twice or early but what was hit itself.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

import attrs

from message_store import Severity
from message_store.base.errors import DelayStoreError
from message_store.format.properties import TIMER_TOPIC
from tests.faults.damage import Damage, damage_file, data_ranges
from tests.independent.raw_files import commit_log_records, queue_units_by_index
from tests.simulation.account import ABSENT, CANCELLED, DELIVERED, PENDING, Life, message_of
from tests.simulation.world import DAY_MS, World, WrongError

KINDS = {"flip": "flip", "hole": "zero", "gone": "gone", "cut": "cut"}
_MOST_BYTES = 4_096
_WHEEL_FILES = ("timerwheel", "config/timercheck")
_UNREADABLE = 8
"""After so many records in a row that cannot be read, a queue has no more."""


@attrs.frozen
class Span:
    """A record in the log, and the message that it belongs to."""

    first: int
    last: int
    name: str


def harm(world: World, fault: str, rng: random.Random, *, is_even: bool = False) -> bool:
    """Damage a file of a store that nobody has open. True: that was refused, the file was put back,
    and the store goes on; False: the store was used to its end. With ``is_even`` each folder is met
    as often as any other, however many files it has.
    """
    paths = sorted(each for each in world.root.rglob("*") if each.is_file())
    if is_even:
        folder = rng.choice(sorted({each.relative_to(world.root).parts[0] for each in paths}))
        paths = [each for each in paths if each.relative_to(world.root).parts[0] == folder]
    path = rng.choice(paths)
    before = _content(path)
    spans = _spans(world.root)
    units = _units(world.root)
    damage = damage_file(world.root, path, KINDS[fault], rng)
    world.say(f"{fault} of {damage.name} at {damage.place}")
    also_lost = _lose_a_queue(world, damage)
    hit = _hit(damage, spans, units)
    digests, was_clean = _digests(world.root), not (world.root / "abort").exists()
    try:
        world.open()
    except DelayStoreError as error:
        world.say(f"  refused: {error}")
        if str(world.root) not in str(error):
            raise WrongError(f"a refusal that names no file: {error}") from error
        found = _digests(world.root)
        if not was_clean:  # which recovery has synced
            found |= {"checkpoint": digests["checkpoint"]} if "checkpoint" in digests else {}
        if damage.name == "delaywheel/hierarchy/active":  # a wheel's files tell its width
            for name in _WHEEL_FILES:
                found[name], digests[name] = "", ""
        if found != digests:
            names = [name for name in found | digests if found.get(name) != digests.get(name)]
            raise WrongError(f"a refused store has changed: {names}: {error}") from error
        _put_back(path, before)
        if also_lost is not None:
            also_lost[1].rename(also_lost[0])
        world.new_disk()
        return True
    _Used(world, hit, damage).require_reported()
    return False


def _lose_a_queue(world: World, damage: Damage) -> tuple[Path, Path] | None:
    """Sometimes the queue is lost as well that is rebuilt from the log, where a record is damaged.
    Returns where it was, and where it lies meanwhile.
    """
    queue, aside = world.root / "consumequeue" / TIMER_TOPIC, world.folder / "lost-queue"
    rng = random.Random(f"{damage.name} {damage.place}")
    if (world.root / "abort").exists():  # nobody would know then that the log goes on
        return None
    if not damage.name.startswith("commitlog") or rng.random() < 0.6 or not queue.is_dir():
        return None
    world.say(f"{TIMER_TOPIC} is lost too")
    shutil.rmtree(aside, ignore_errors=True)
    queue.rename(aside)
    return queue, aside


def _content(path: Path) -> tuple[int, list[tuple[int, bytes]]]:
    with path.open("rb") as file:
        descriptor = file.fileno()
        ranges = list(data_ranges(descriptor))
        parts = [(first, os.pread(descriptor, last - first, first)) for first, last in ranges]
        return os.fstat(descriptor).st_size, parts


def _put_back(path: Path, content: tuple[int, list[tuple[int, bytes]]]) -> None:
    size_bytes, parts = content
    with path.open("wb") as file:
        for first, data in parts:
            file.seek(first)
            file.write(data)
        file.truncate(size_bytes)


def _digests(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        is_native = "hierarchy/index" in str(path)  # a database that is looked at writes its log
        if path.is_file() and not is_native and path.name != "lock":
            found[str(path.relative_to(root))] = hashlib.sha1(
                repr(_content(path)).encode()
            ).hexdigest()
    return found


def _spans(root: Path) -> list[Span]:
    return [
        Span(
            each.commit_log_offset,
            each.commit_log_offset + each.size_bytes,
            each.record.effective.get("UNIQ_KEY", ""),
        )
        for each in commit_log_records(root / "commitlog")
    ]


def _units(root: Path) -> dict[str, list[int]]:
    """Of every file of a queue, where in the log each of its entries leads."""
    found: dict[str, list[int]] = {}
    for queue in sorted((root / "consumequeue").glob("*/*")):
        units = queue_units_by_index(queue)
        for file in sorted(queue.iterdir()):
            if file.name.isdigit():
                first = int(file.name) // 20
                count = file.stat().st_size // 20
                found[str(file.relative_to(root))] = [
                    units[index].commit_log_offset if index in units else -1
                    for index in range(first, first + count)
                ]
    return found


def _hit(damage: Damage, spans: list[Span], units: dict[str, list[int]]) -> set[str]:
    """Names of messages whose own bytes may be damaged: no checksum tells of all of them. A delete
    marker names its message in a property, so that all of its file counts.
    """
    folder = damage.name.split(os.sep)[0]
    is_whole = damage.kind in ("gone", "cut")
    begin = 0 if damage.kind == "gone" else damage.place
    end = 10**9 if is_whole else damage.place + _MOST_BYTES
    if folder == "commitlog":
        base = int(Path(damage.name).name)
        return {each.name for each in spans if each.first < base + end and base + begin < each.last}
    if damage.name in units:
        rows = units[damage.name][begin // 20 : end // 20 + 1]
        return {each.name for each in spans for row in rows if each.first <= row < each.last}
    return set()


def _flushed(lives: list[Life]) -> int:
    """How many of these are there for certain, since a flush."""
    return sum(life.may <= {PENDING, DELIVERED} and ABSENT not in life.since for life in lives)


@attrs.define
class _Used:
    """A damaged store that was opened: what is said of it, and what comes of it."""

    world: World
    hit: set[str]
    damage: Damage
    reports: list[str] = attrs.field(factory=list)

    def require_reported(self) -> None:
        """Use the store to its end, and hold it to what it says."""
        world = self.world
        self._note_findings()
        self._advance()
        came = self._came()
        self._require_none_early(came)
        for step_ms in (1_000, 600_000, DAY_MS, 21 * DAY_MS):
            world.clock.tick(step_ms)
            self._advance()
        self._note_findings()
        self._require(self._came())

    @property
    def _cuts_the_log(self) -> bool:
        """Whether records are gone with no byte left that tells of them."""
        return self.damage.kind in ("gone", "cut") and self.damage.name.startswith("commitlog")

    def _note_findings(self) -> None:
        findings = self.world.store.check()
        self.reports += [str(each) for each in findings if each.severity is not Severity.INFO]

    def _advance(self) -> None:
        world = self.world
        world.account.advance(world.clock.now_ms())
        for _ in range(4):
            try:
                if not len(world.store.advance(world.clock.now_ms())):
                    return
            except DelayStoreError as error:
                self.reports.append(f"advance: {error}")
                with suppress(DelayStoreError):
                    world.store.close()
                world.kill()
                world.open()

    def _came(self) -> Counter[str]:
        """Message by message, so that one that cannot be read hides no other."""
        found = self.world.came_before
        messages = [message_of(name) for name in self._groups()]
        for topic, queue_id in sorted({(each.topic, each.queue_id) for each in messages}):
            found += self._came_to(topic, queue_id)
        return found

    def _came_to(self, topic: str, queue_id: int) -> Counter[str]:
        found: Counter[str] = Counter()
        place = unreadable = 0
        known: set[int] = set()
        while unreadable < _UNREADABLE:
            try:
                messages = self.world.store.topic(topic).read(queue_id, place, 1)
            except DelayStoreError as error:
                self.reports.append(f"read: {error}")
                place, unreadable = place + 1, unreadable + 1
                continue
            if not messages:
                break
            unreadable = 0
            if messages[0].commit_log_offset not in known:
                known.add(messages[0].commit_log_offset)
                found[messages[0].body.decode(errors="replace").rstrip("x")] += 1
            place = max(place, messages[0].queue_offset) + 1
        return found

    def _groups(self) -> dict[str, list[Life]]:
        groups: dict[str, list[Life]] = {}
        for life in self.world.account.lives:
            groups.setdefault(life.name, []).append(life)
        return groups

    def _require_none_early(self, came: Counter[str]) -> None:
        if self.world.account.is_repeating:
            return
        until_ms = self.world.account.advanced_to_ms
        for name, lives in self._groups().items():
            due = [life for life in lives if life.early_ms <= until_ms or DELIVERED in life.may]
            if came[name] > len(due) and name not in self.hit:
                raise WrongError(
                    f"early after damage: {came[name]} of: {'; '.join(map(str, lives))}"
                )

    def _require(self, came: Counter[str]) -> None:
        for name, lives in self._groups().items():
            own = [life for life in lives if life.family == self.world.account.family]
            shown = [life for life in lives if life in own or life.may == {DELIVERED}]
            least = sum(life.may <= {PENDING, DELIVERED} for life in shown)
            most = sum(bool(life.may & {PENDING, DELIVERED}) for life in lives)
            told = f"{came[name]} came of: {'; '.join(map(str, lives))}"
            is_hit = name in self.hit
            if self._cuts_the_log and came[name] < _flushed(shown) and not self.reports:
                raise WrongError(f"lost with the log's end, without a word: {told}")
            is_reported = bool(self.reports)
            if came[name] < least and not is_reported and not is_hit:
                raise WrongError(f"lost without a word: {told}")
            if came[name] > most and not is_hit and not self.world.account.is_repeating:
                is_back = any(CANCELLED in life.may for life in lives)
                if not (is_back and is_reported):
                    raise WrongError(f"doubled after damage: {told}; {self.reports[:3]}")
