# SPDX-License-Identifier: Apache-2.0
"""How many messages of a store wait in other engines than the one that opens it."""

from collections.abc import Callable, Iterator

from legacy_levels.backlog.queues import estimate_backlog
from legacy_levels.delay_offsets import OffsetsChoice, read_delay_offsets
from message_store.base.errors import DelayStoreError
from message_store.base.printable import counted
from message_store.files.store_root import StoreRoot
from message_store.reading.engine_choice import NAMED_ENGINES, EngineName, engines_in, takes_over
from time_index.reading import pending_in_time_index
from timer_wheel.reading.wheel_reader import read_wheel_store


def left_alone(root: StoreRoot, chosen: EngineName, now_ms: int) -> Iterator[str]:
    """A sentence for each other engine in which messages wait, with the verb that helps.

    Of levels it is about how many, by their queues. Where the files of an engine cannot be read,
    messages may wait there. Raises SourceError where the disk refuses.
    """
    for engine in engines_in(root):
        if engine == chosen or takes_over(chosen, engine):
            continue
        try:
            count = _COUNTS[engine](root, now_ms)
            waiting = counted(count, "message waits", "messages wait")
        except DelayStoreError:
            count, waiting = 1, "messages may wait"
        if count:
            yield (
                f"{root.path}: {waiting} in {NAMED_ENGINES[engine]}, and this engine leaves them"
                f" there: `delaywheel run --engine {engine}` delivers them, `delaywheel pending`"
                " lists them"
            )


def _in_levels(root: StoreRoot, _now_ms: int) -> int:
    return estimate_backlog(root.path, read_delay_offsets(root.path, OffsetsChoice.AUTO))[0]


def _on_wheel(root: StoreRoot, now_ms: int) -> int:
    after_crash = not root.was_stopped_cleanly
    state = read_wheel_store(root, now_ms=now_ms, after_crash=after_crash)
    return len(state.require_sound(root.path).pending)


def _in_time_index(root: StoreRoot, _now_ms: int) -> int:
    return len(pending_in_time_index(root).due_ms)


_COUNTS: dict[EngineName, Callable[[StoreRoot, int], int]] = {
    "levels": _in_levels,
    "wheel": _on_wheel,
    "hierarchy": _on_wheel,
    "time-index": _in_time_index,
}
