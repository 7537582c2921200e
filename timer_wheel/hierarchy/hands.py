# SPDX-License-Identifier: Apache-2.0
"""Three wheels and their hands: pending messages move from hours to minutes to seconds, and from
there into memory.

In memory is what is due before the second hand, ``near``, and what is newer than the last batch of
writes, ``fresh``. Everything else stands in the database. The database as it was last written is a
complete account of one moment. Later messages are in the queue, and later deliveries in the log.
"""

from collections.abc import Callable, Iterator
from itertools import chain

import attrs
import numpy as np

from message_store.columns.byte_column import int64s
from timer_wheel.format.index_layouts import HOURS, MINUTES, SECONDS, WHEELS, Rows, Wheel
from timer_wheel.hierarchy.index_db import Block, IndexBatch, IndexDb, IndexView
from timer_wheel.hierarchy.waiting_rows import by_slot, in_order, no_rows, together
from timer_wheel.timers.rows import Bools

FED_AT_ONCE = 1 << 17
_MANY_NEW = 1 << 10
_HANDS = {SECONDS.name: "second_ms", MINUTES.name: "minute_ms", HOURS.name: "hour_ms"}
_NEVER = 2**62
_MANY_PARTS = 256
_Place = tuple[str, int, int]


@attrs.frozen
class Hands:
    """How far the wheels have come: what is due before a hand stands in a finer wheel, or is near.

    ``second_ms`` is known of this process only.
    """

    minute_ms: int = 0
    hour_ms: int = 0
    second_ms: int = 0

    def of(self, wheel: Wheel) -> int:
        """The hand that feeds from a wheel."""
        return int(getattr(self, _HANDS[wheel.name]))

    def wheels_for(self, rows: Rows) -> Iterator[tuple[Wheel, Bools]]:
        """Which messages go into which wheel: the finest whose span reaches them."""
        in_seconds = rows["due_ms"] < self.minute_ms
        in_hours = (rows["due_ms"] >= self.hour_ms) & ~in_seconds
        yield SECONDS, in_seconds
        yield MINUTES, ~in_seconds & ~in_hours
        yield HOURS, in_hours


@attrs.frozen(eq=False)
class Writing:
    """A batch that takes what is in memory to the database, as it was at one moment."""

    hands: Hands
    queue_end: int
    near: list[_Place]
    far: list[_Place]
    loaded: int


class WaitingMessages:
    """All messages that wait in one store, but for delete markers.

    ``hands`` are moved by ``reach``. Whoever calls anything holds the store's lock.
    """

    def __init__(self, db: IndexDb, hands: Hands) -> None:
        self.hands = hands
        self._db = db
        self._near = no_rows()
        self._near_ms = int64s([])
        self._newly_near: list[Rows] = []
        self._fresh: list[Rows] = []
        self._loaded: dict[_Place, None] = {}  # stand in the database, and here
        self._on_their_way: frozenset[_Place] = frozenset()  # the same, from any moment on
        self._being_written: Writing | None = None
        self._first_fresh_ms = _NEVER
        self._first_stored_ms: int | None = None  # not known

    # --- coming in --------------------------------------------------------------------------------

    def add(self, rows: Rows) -> None:
        """Take in messages that the database does not have."""
        is_near = rows["due_ms"] < self.hands.second_ms
        if is_near.any():
            self._newly_near.append(rows[is_near])
            rows = rows[~is_near]
        if len(rows):
            self._fresh.append(rows)
            self._first_fresh_ms = min(self._first_fresh_ms, int(rows["due_ms"].min()))
            if len(self._fresh) > _MANY_PARTS:
                self._fresh = [together(self._fresh)]

    def _keep_fresh(self, parts: list[Rows]) -> None:
        self._fresh = [rows for rows in parts if len(rows)]
        times = [int(rows["due_ms"].min()) for rows in self._fresh]
        self._first_fresh_ms = min(times, default=_NEVER)

    @property
    def in_memory(self) -> int:
        """How many messages the database does not have."""
        return sum(map(len, self._fresh))

    # --- the hands --------------------------------------------------------------------------------

    def reach(self, now_ms: int) -> None:
        """Move the hands past a time: everything that is due until then is near."""
        second_ms = now_ms // SECONDS.slot_ms * SECONDS.slot_ms + SECONDS.slot_ms
        if second_ms <= self.hands.second_ms:
            return
        self._feed(HOURS, second_ms)
        self._feed(MINUTES, second_ms)
        self._load(SECONDS, self.hands.second_ms, second_ms)
        fresh = together(self._fresh)
        self._keep_fresh([])
        self.add(fresh)

    def _feed(self, wheel: Wheel, second_ms: int) -> None:
        """Move the minute or the hour hand past the second hand's new place. Slots that are over
        come near whole; the current one goes into the finer wheels.
        """
        hand_ms = self.hands.of(wheel)
        if second_ms <= hand_ms:
            return
        begin_ms = second_ms // wheel.slot_ms * wheel.slot_ms
        if begin_ms > hand_ms:
            self._load(wheel, hand_ms, begin_ms)
        if begin_ms < second_ms:
            end_ms = begin_ms + wheel.slot_ms
            while self._feed_some(wheel, begin_ms, end_ms):
                pass
            self._set_hand(wheel, end_ms)

    def feed_ahead(self) -> None:
        """Take a part of the next slot into the finer wheels: little is left for its time."""
        for wheel in (MINUTES, HOURS):
            hand_ms = self.hands.of(wheel)
            is_next = hand_ms - self.hands.second_ms < wheel.slot_ms
            if is_next and self._feed_some(wheel, hand_ms, hand_ms + wheel.slot_ms):
                return

    def _feed_some(self, wheel: Wheel, from_ms: int, until_ms: int) -> bool:
        """Move some messages of a slot; says whether there were any."""
        batch, parts, count = self._db.batch(), [], 0
        for block in self._blocks(wheel, from_ms, until_ms):
            batch.drop_block(*_place(wheel, block))
            parts.append(block.rows)
            count += len(block.rows)
            if count >= FED_AT_ONCE:
                break
        if parts:
            self._first_stored_ms = None
            hands = attrs.evolve(self.hands, **{_HANDS[wheel.name]: until_ms})
            self._put(together(parts), hands, batch)
            self._db.move(batch)
        return bool(parts)

    def _load(self, wheel: Wheel, from_ms: int, until_ms: int) -> None:
        """Bring near what stands in the slots of a range of time, and move the hand past them."""
        found = list(self._blocks(wheel, from_ms, until_ms))
        self._newly_near += [block.rows for block in found]
        self._loaded |= dict.fromkeys(_place(wheel, block) for block in found)
        self._set_hand(wheel, until_ms)

    def _set_hand(self, wheel: Wheel, to_ms: int) -> None:
        self._first_stored_ms = None
        self.hands = attrs.evolve(self.hands, **{_HANDS[wheel.name]: to_ms})

    # --- going out --------------------------------------------------------------------------------

    def take_due(self, now_ms: int) -> Rows:
        """Take out what is due at a time, which the hands have reached: in order of promises, equal
        ones in order of the queue. ``add`` gives it back.
        """
        if sum(map(len, self._newly_near)) > _MANY_NEW:
            self.near()
        new = together(self._newly_near)
        cut = int(np.searchsorted(self._near_ms, now_ms, side="right"))
        is_due = new["due_ms"] <= now_ms
        due = in_order(together([self._near[:cut], new[is_due]]))
        self._near, self._near_ms = self._near[cut:], self._near_ms[cut:]
        self._newly_near = [] if is_due.all() else [new[~is_due]]
        return due

    def near(self) -> Rows:
        """What is due before the second hand, in order."""
        if self._newly_near:
            self._keep_near(in_order(together([self._near, *self._newly_near])))
        return self._near

    def drop_near(self, is_gone: Bools) -> None:
        """Take out some of what ``near`` tells."""
        self._keep_near(self.near()[~is_gone])

    def _keep_near(self, rows: Rows) -> None:
        self._near, self._near_ms, self._newly_near = rows, int64s(rows["due_ms"]), []

    def take_out(self, chosen: Callable[[Rows], Bools]) -> Rows:
        """Take out all that is chosen, wherever it stands; returns it. What stood beside it in the
        database comes to memory.
        """
        near, fresh = self.near(), together(self._fresh)
        # First everything is read: damage must not leave some of it in neither place.
        blocks = [
            (_place(wheel, block), block.rows)
            for wheel in WHEELS
            for block in self._blocks_with(chosen, wheel)
        ]
        from_near, from_fresh = chosen(near), chosen(fresh)
        gone, kept = [near[from_near], fresh[from_fresh]], [fresh[~from_fresh]]
        for place, rows in blocks:
            is_gone = chosen(rows)
            gone.append(rows[is_gone])
            kept.append(rows[~is_gone])
            self._loaded[place] = None
        self._keep_near(near[~from_near])
        self._keep_fresh(kept)
        self._first_stored_ms = None
        return together(gone)

    def _blocks_with(self, chosen: Callable[[Rows], Bools], wheel: Wheel) -> Iterator[Block]:
        for block in self._blocks(wheel, self.hands.of(wheel)):
            if chosen(block.rows).any():
                yield block

    # --- writing ----------------------------------------------------------------------------------

    def put_all(self, batch: IndexBatch, queue_end: int) -> Writing:
        """Let a batch take what is in memory to the database, where all of it stands in the queue
        before ``queue_end``.
        """
        if self._being_written is not None:  # an interrupt: nobody knows if that was written
            left = (*self._being_written.near, *self._being_written.far)
            self._loaded |= dict.fromkeys(left)
        for place in self._loaded:
            batch.drop_block(*place)
        far = self._put(together(self._fresh), self.hands, batch)
        near = [
            batch.put_block(SECONDS.name, slot_ms, rows)
            for slot_ms, rows in by_slot(self.near(), SECONDS)
        ]
        self._on_their_way = frozenset(far)
        writing = Writing(self.hands, queue_end, near, far, len(self._loaded))
        self._being_written = writing
        return writing

    def written(self, writing: Writing) -> None:
        """The batch was written. What has come near since then stays in memory; all else that it
        took is in the database alone.
        """
        self._on_their_way, self._first_stored_ms = frozenset(), None
        self._being_written = None
        since = list(self._loaded)[writing.loaded :]
        since += [place for place in writing.far if place[1] < self._hand_at(place[0])]
        self._loaded = dict.fromkeys([*writing.near, *since])
        kept = []
        for rows in self._fresh:
            is_there = rows["queue_offset"] < writing.queue_end
            for wheel, chosen in writing.hands.wheels_for(rows):
                slots = rows["due_ms"] // wheel.slot_ms * wheel.slot_ms
                is_there &= ~chosen | (slots >= self.hands.of(wheel))
            kept.append(rows[~is_there])
        self._keep_fresh(kept)

    def _hand_at(self, family: str) -> int:
        return int(getattr(self.hands, _HANDS[family]))

    @staticmethod
    def _put(rows: Rows, hands: Hands, batch: IndexBatch) -> list[_Place]:
        return [
            batch.put_block(wheel.name, slot_ms, part)
            for wheel, chosen in hands.wheels_for(rows)
            for slot_ms, part in by_slot(rows[chosen], wheel)
        ]

    # --- looking ----------------------------------------------------------------------------------

    def _blocks(self, wheel: Wheel, from_ms: int, until_ms: int | None = None) -> Iterator[Block]:
        """The blocks that are in the database alone."""
        for block in self._db.blocks(wheel.name, from_ms, until_ms):
            place = _place(wheel, block)
            if place not in self._loaded and place not in self._on_their_way:
                yield block

    def parts(self) -> Iterator[Rows]:
        """All pending messages, in parts, memory first; may be read while others use the store."""
        in_memory = [together([self._near, *self._newly_near]), together(self._fresh)]
        here = frozenset(self._loaded) | self._on_their_way
        view = self._db.view(wheel.name for wheel in WHEELS)
        return chain(in_memory, self._parts_of(view, self.hands, here))

    def _parts_of(self, view: IndexView, hands: Hands, here: frozenset[_Place]) -> Iterator[Rows]:
        for wheel in WHEELS:
            for block in self._db.blocks_in(view, wheel.name, hands.of(wheel)):
                if _place(wheel, block) not in here:
                    yield block.rows

    def due_at(self, due_ms: int) -> Rows:
        """The messages that are promised for one time."""
        parts = [self._near, *self._newly_near, *self._fresh]
        for wheel in WHEELS:
            slot_ms = due_ms // wheel.slot_ms * wheel.slot_ms
            if slot_ms >= self.hands.of(wheel):
                parts += [block.rows for block in self._blocks(wheel, slot_ms, slot_ms + 1)]
        return together([part[part["due_ms"] == due_ms] for part in parts])

    def first_ms(self) -> int | None:
        """When something is due, or a slot begins in which something is; None for nothing."""
        parts = [self._near[:1], *self._newly_near]
        times = [int(part["due_ms"].min()) for part in parts if len(part)]
        if self._first_stored_ms is None:
            firsts = (next(self._blocks(wheel, self.hands.of(wheel)), None) for wheel in WHEELS)
            slots = [block.slot_ms for block in firsts if block is not None]
            self._first_stored_ms = min(slots, default=_NEVER)
        first_ms = min([*times, self._first_fresh_ms, self._first_stored_ms])
        return None if first_ms == _NEVER else first_ms


def _place(wheel: Wheel, block: Block) -> _Place:
    return wheel.name, block.slot_ms, block.queue_offset
