# SPDX-License-Identifier: Apache-2.0
"""What opening again cost the engines of a race, side by side, in words."""

from collections.abc import Iterator, Sequence

from compare.report.results import EngineResult, Opening
from message_store.base.printable import duration, size

NOTHING = "–"
_MS = 1_000


def opening_rows(ran: Sequence[EngineResult]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Two rows for every time that engines were opened again: a title, what it means, and a cell an
    engine.
    """
    for kind, at_ms, openings in side_by_side(ran):
        yield (
            f"opened again, {kind} after {duration(at_ms)}",
            "until it knew what is due next; what came from the disk",
            tuple(map(_opened, openings)),
        )
        delivered = tuple(map(_delivered, openings))
        yield "… its first delivery", "so long for so many messages", delivered


def side_by_side(
    ran: Sequence[EngineResult],
) -> Iterator[tuple[str, int, tuple[Opening | None, ...]]]:
    """Kind and time of every fault after which some engine was opened again, and each engine's
    opening.
    """
    known = [{(fault.at_ms, fault.kind): fault.opening for fault in one.faults} for one in ran]
    for at_ms, kind in sorted({fault for faults in known for fault in faults}):
        openings = tuple(faults.get((at_ms, kind)) for faults in known)
        if any(openings):
            yield kind, at_ms, openings


def _opened(opening: Opening | None) -> str:
    if opening is None:
        return NOTHING
    return duration(opening.open_s * _MS) + _read(opening.read_bytes)


def _delivered(opening: Opening | None) -> str:
    if opening is None or not opening.first_messages:
        return NOTHING
    took = f"{duration(opening.first_s * _MS)} for {opening.first_messages:,}"
    return took + _read(opening.first_read_bytes)


def _read(length: int) -> str:
    """What came from the disk, where anything did."""
    return f", {size(length)} read" if length else ""
