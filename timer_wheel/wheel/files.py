# SPDX-License-Identifier: Apache-2.0
"""The fast form of ``CheckFileOfStore``: timercheck, and the other small files of an open wheel.

Checkpoint and wheel are rewritten in place. The checkpoint's master offset is raised before units
are appended. So at any moment a broker that takes over resumes behind the last unit: it neither
places a message twice nor skips one. The last offset is raised when the units are on the disk,
because a broker believes it if it finds no unit. A loss of power may keep the checkpoint and take
the units (RocketMQ: TimerMessageStore's flush service writes the timer log first).
"""

from collections.abc import Mapping
from pathlib import Path

import attrs

from message_store.base.clock import Clock
from message_store.base.errors import FormatError, TargetError, disk_errors
from message_store.files.small_files import (
    InPlaceFile,
    read_small_file,
    remove_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.files.unsynced import Unsynced
from timer_wheel.format.checkpoint import (
    OWN_PLACES,
    TIMER_CHECKPOINT_NAME,
    OwnCheckpoint,
    TimerCheckpoint,
    decode_own,
    decode_timer_checkpoint,
    encode_own,
    encode_timer_checkpoint,
)
from timer_wheel.format.metrics import (
    TIMER_METRICS_NAME,
    TimerMetrics,
    TopicCount,
    encode_timer_metrics,
)
from timer_wheel.format.wheel_file import WHEEL_FILE_BYTES, WheelSlots, read_slots, snapshots
from timer_wheel.wheel.slots import LiveWheel

_SNAPSHOTS_KEPT = 2


class WheelFiles:
    """The files, and what the checkpoint says; ``found`` is what it said at opening.

    ``claimed_hand_ms`` is where it said the hand was, which ``found`` has not where only that is
    not what we wrote; ``is_damaged`` says that something in it was not (``decode_own``).

    With ``keeps_guard`` the sentence in the place of the wheel file, which keeps brokers from
    starting, stays until ``replace_guard``.
    """

    def __init__(
        self, root: StoreRoot, clock: Clock, *, snapshots: bool, keeps_guard: bool = False
    ) -> None:
        self._root = root
        self._clock = clock
        self._writes_snapshots = snapshots
        self._keeps_guard = keeps_guard
        content = read_small_file(root.config_file(TIMER_CHECKPOINT_NAME)) or b""
        found = decode_own(content, decode_timer_checkpoint(content))
        self.found, self.found_own = found.numbers, found.own
        self.claimed_hand_ms, self.is_damaged = found.claimed_hand_ms, found.is_damaged
        self.is_stale = self.is_damaged or self.claimed_hand_ms != self.found.last_read_time_ms
        self.checkpoint = self.found
        self.own = self.found_own or OwnCheckpoint(0, 0, 0)
        self._checkpoint_file: InPlaceFile | None = None
        self._wheel_file: InPlaceFile | None = None
        self._wheel_is_unsynced = False
        self._has_length = False

    # --- the checkpoint ---------------------------------------------------------------------------

    def announce(self, queue_offset: int) -> None:
        """Say that entries before this queue offset may be placed from now on."""
        if queue_offset > self.checkpoint.master_queue_offset:
            self._write(
                attrs.evolve(
                    self.checkpoint,
                    master_queue_offset=queue_offset,
                    timestamp_ms=self._clock.now_ms(),
                    counter=self.checkpoint.counter + 1,
                )
            )

    def save(self, hand_ms: int, placed_end: int, own: OwnCheckpoint | None = None) -> None:
        """Say where the hand is, and up to which queue offset all entries have units, which may not
        be on the disk. ``own`` is our own part from now on.
        """
        self.own = own or self.own
        self.announce(placed_end)
        known = self.checkpoint
        self._write(
            attrs.evolve(
                known,
                last_read_time_ms=hand_ms,
                last_queue_offset=min(known.last_queue_offset, placed_end),
                master_queue_offset=placed_end,
            )
        )

    def will_end_at(self, position: int, *, place_from: int | None) -> None:
        """Say that the timer log is going to be cut there, durably and before it is: neither the
        wheel file nor a snapshot holds what comes to lie behind. A broker that then finds no unit
        at all goes on at the queue offset ``place_from``.
        """
        known = self.checkpoint
        beyond = self._snapshots_beyond(position)
        flushed = 0 if beyond else min(known.flush_position, position)
        last = known.last_queue_offset if place_from is None else place_from
        if (flushed, last) != (known.flush_position, known.last_queue_offset):
            self._write(attrs.evolve(known, last_queue_offset=last))
            self.sync_checkpoint(flushed, self.own, last)
        self.forget_snapshots_beyond(position)

    def forget_snapshots_beyond(self, position: int) -> None:
        """Take away the snapshots that were right only of a timer log that was longer."""
        for path in self._snapshots_beyond(position):
            remove_file(path)

    def _snapshots_beyond(self, position: int) -> list[Path]:
        return [path for end, path in snapshots(self._root) if end > position]

    def _write(self, checkpoint: TimerCheckpoint, *, in_any_case: bool = False) -> InPlaceFile:
        if self._checkpoint_file is None:
            path = self._root.config_file(TIMER_CHECKPOINT_NAME)
            with disk_errors(TargetError, path.parent, "written"):
                path.parent.mkdir(parents=True, exist_ok=True)
            self._checkpoint_file = InPlaceFile(path)
        if in_any_case or self.is_stale or checkpoint != self.checkpoint:
            content = bytearray(encode_timer_checkpoint(checkpoint))
            own = encode_own(self.own, checkpoint)
            for place in OWN_PLACES:
                content[place : place + len(own)] = own
            self._checkpoint_file.write(bytes(content))
            self.checkpoint, self.is_stale = checkpoint, False
        return self._checkpoint_file

    def begin_checkpoint_sync(
        self, flush_position: int, own: OwnCheckpoint, placed_end: int
    ) -> Unsynced:
        """Let it say up to where log and wheel are on disk, and up to which queue offset the units
        are; ``finish``, without a lock, comes back when it is there itself. Raises TargetError.
        """
        self.own = own
        checkpoint = attrs.evolve(
            self.checkpoint, flush_position=flush_position, last_queue_offset=placed_end
        )
        file = self._write(checkpoint, in_any_case=True)
        return Unsynced((file.another_handle(),), (self._root.config,), lambda: None)

    def sync_checkpoint(self, flush_position: int, own: OwnCheckpoint, placed_end: int) -> None:
        """Return when it, and up to where log and wheel are, is on disk. Raises TargetError."""
        self.begin_checkpoint_sync(flush_position, own, placed_end).finish()

    # --- the wheel --------------------------------------------------------------------------------

    def compare(self, wheel: LiveWheel, file: WheelSlots | None, log_end: int) -> None:
        """Note where the file differs from the wheel, or write it anew. Raises TargetError."""
        self._has_length = file is not None
        if file is not None:
            wheel.note_differences(file, log_end)
        elif not self._keeps_guard:
            remove_file(self._root.timer_wheel)

    def slots_on_disk(self) -> WheelSlots | None:
        """The wheel file, or the newest snapshot if those are written; None where there is none."""
        path = self._root.timer_wheel
        if self._writes_snapshots and (known := snapshots(self._root)):
            path = known[-1][1]
        try:
            return read_slots(path)
        except FormatError:
            return None

    def write_wheel(self, wheel: LiveWheel, log_position: int) -> None:
        """Put what changed into the file, or all into a snapshot as of a timer log position."""
        if self._writes_snapshots:
            self._write_snapshot(wheel, log_position)
            return
        if self._keeps_guard:
            return
        if self._wheel_file is None:
            is_new = not self._has_length
            self._wheel_file = self._wheel_file_of_full_length()
            if is_new:  # its last byte is zero
                last_page = wheel.dirty[-1:]
                last_page |= wheel.image[-1:] != 0
        for at, piece in wheel.take_dirty_pieces():
            self._wheel_file.write(piece, at=at)
            self._wheel_is_unsynced = True

    def _wheel_file_of_full_length(self) -> InPlaceFile:
        """The wheel file; a new one gets its length first, durably, or a broker refuses it."""
        file = InPlaceFile(self._root.timer_wheel)
        if not self._has_length:
            try:
                file.write(b"\0", at=WHEEL_FILE_BYTES - 1, durably=True)
            except TargetError:
                file.close()
                raise
            self._has_length = True
        return file

    def _write_snapshot(self, wheel: LiveWheel, log_position: int) -> None:
        if not wheel.dirty.any() and snapshots(self._root):
            return
        path = self._root.timer_wheel
        if not path.exists():
            InPlaceFile(path).close()
        path = path.with_name(f"{path.name}.{log_position}")
        replace_file(path, wheel.image.tobytes())
        wheel.all_is_written()
        for _, old in snapshots(self._root)[:-_SNAPSHOTS_KEPT]:
            remove_file(old)

    def replace_guard(self, wheel: LiveWheel) -> None:
        """Put the whole wheel file in the place of the guard, at once and durably: brokers may
        start from then on. Raises TargetError.
        """
        image = b"" if self._writes_snapshots else wheel.image.tobytes()
        replace_file(self._root.timer_wheel, image)
        if not self._writes_snapshots:
            wheel.all_is_written()
        self._keeps_guard = False

    def forget_wheel(self) -> None:
        """Take away what was written of a wheel that is no more."""
        if not self._keeps_guard:
            remove_file(self._root.timer_wheel)
            self._has_length = False
        for _, path in snapshots(self._root):
            remove_file(path)

    def doubt_wheel(self) -> None:
        """Say that the file may be in memory alone: its writer did not live to sync it."""
        self._wheel_is_unsynced = True

    def begin_wheel_sync(self) -> Unsynced:
        """What was written of the wheel file and is not on disk; ``finish`` needs no lock.

        After one that fails nobody may rely on the file any more.
        """
        if self._wheel_file is None or not self._wheel_is_unsynced:
            return Unsynced((), (), lambda: None)
        descriptor, self._wheel_is_unsynced = self._wheel_file.another_handle(), False
        return Unsynced((descriptor,), (self._root.path,), lambda: None)

    def sync_wheel(self) -> None:
        """Come back when the wheel file is on disk."""
        self.begin_wheel_sync().finish()

    # --- metrics ----------------------------------------------------------------------------------

    def write_metrics(self, counts: Mapping[str, int], *, durably: bool) -> None:
        """Say how many messages of each topic are on the wheel."""
        now_ms = self._clock.now_ms()
        topics = {topic: TopicCount(count, now_ms) for topic, count in sorted(counts.items())}
        checkpoint = self.checkpoint
        text = encode_timer_metrics(TimerMetrics(topics, checkpoint.counter, 0, now_ms))
        path = self._root.config_file(TIMER_METRICS_NAME)
        replace_file(path, text.encode(), is_durable=durably)

    def close(self) -> None:
        """Give the files back; closing twice is fine."""
        for file in (self._checkpoint_file, self._wheel_file):
            if file is not None:
                file.close()
