# SPDX-License-Identifier: Apache-2.0
"""What was seen of one engine while it ran: raw columns and costs, before anything is made of them.

This is what every entrant hands in, ours and others, so that all are measured by the same code.
"""

from collections.abc import Iterable, Mapping

import attrs
import numpy as np

from compare.report.results import FaultSeen, Usage
from compare.running.faults import Fault
from message_store.columns.byte_column import Int64s, int64s

NOT_TAKEN = -1
"""Stands for the promise of a message that the engine refused."""


@attrs.frozen(kw_only=True)
class RaceSettings:
    """How engines are run, the same for all of them.

    ``tick_ms``: on the virtual clock engines are looked at only at multiples of it, as brokers look
    at their levels every 100 ms. The wheel's limit is ``max_delay_ms``. Log files have
    ``commit_log_file_bytes``. Before ``asleep_until_ms`` nobody looks at an engine on the virtual
    clock, as when a broker was stopped. ``level_table`` is that of the workload's store, None for
    RocketMQ's own. ``puts_one_by_one``: nobody puts batches once the workload has begun.
    ``leaves_pending``: on the wall clock the race ends when all was put, and what is pending then
    counts as missing.
    """

    clock: str = "virtual"
    precision_ms: int = 1_000
    tick_ms: int = 100
    max_delay_ms: int = 3 * 86_400_000
    flush_every_ms: int = 1_000
    commit_log_file_bytes: int = 1 << 30
    asleep_until_ms: int = 0
    faults: tuple[Fault, ...] = ()
    level_table: str | None = None
    puts_one_by_one: bool = False
    leaves_pending: bool = False


@attrs.frozen(kw_only=True)
class Costs:
    """Seconds by a stopwatch and of processor time, and bytes. ``put_s`` is spent in ``schedule``,
    ``drain_s`` in those ``advance`` calls that delivered, ``other_s`` in all others. Where it is
    known, ``longest_put_s`` is the longest call of ``schedule`` since the workload began, and
    ``last_put_s`` how long after that the last one came back.
    """

    put_s: float
    drain_s: float
    other_s: float
    elapsed_s: float
    cpu_s: float
    peak_memory_bytes: int
    bytes_on_disk: int
    longest_put_s: float = 0.0
    last_put_s: float = 0.0


@attrs.frozen(eq=False)
class Delivered:
    """What stands in the delivered topics, in the order of delivery: which message, and the time
    stored in its record. Read from the topics, and not told by the engine.
    """

    number: Int64s = attrs.field(converter=int64s)
    stored_ms: Int64s = attrs.field(converter=int64s)

    def __len__(self) -> int:
        return len(self.number)

    @classmethod
    def of(cls, pieces: Iterable["Delivered"] = ()) -> "Delivered":
        """All of them, one behind the other."""
        both = [cls([], []), *pieces]
        return cls(
            np.concatenate([piece.number for piece in both]),
            np.concatenate([piece.stored_ms for piece in both]),
        )


@attrs.frozen(eq=False)
class SeenRounds:
    """The moments at which deliveries could be seen: ``counts[i]`` messages at ``seen_ms[i]``."""

    counts: Int64s = attrs.field(converter=int64s)
    seen_ms: Int64s = attrs.field(converter=int64s)

    def of(self, delivered: Delivered) -> Int64s:
        """When each delivered message could be seen.

        Where the counts do not add up to what is there, that is the first moment not before the
        time in the record.
        """
        if int(self.counts.sum()) == len(delivered):
            return np.repeat(self.seen_ms, self.counts)
        if not len(self.seen_ms):
            return delivered.stored_ms
        ordered = np.sort(self.seen_ms)
        place = np.searchsorted(ordered, delivered.stored_ms)
        later = ordered[np.minimum(place, len(ordered) - 1)]
        return np.maximum(later, delivered.stored_ms)


@attrs.frozen(eq=False, kw_only=True)
class Observation:
    """One run of one engine.

    ``start_ms`` is when the workload really began. ``promised_ms`` has a row a message, NOT_TAKEN
    where it was refused, or where putting it failed: ``put_failures`` count those by their reason.
    """

    start_ms: int
    promised_ms: Int64s = attrs.field(converter=int64s)
    rounds: SeenRounds
    costs: Costs
    delivered: Delivered = attrs.field(factory=Delivered.of)
    usage: Usage = attrs.field(factory=Usage)
    faults: tuple[FaultSeen, ...] = ()
    version: str = ""
    notes: tuple[str, ...] = ()
    put_failures: Mapping[str, int] = attrs.field(factory=dict)
