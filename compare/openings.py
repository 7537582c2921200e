# SPDX-License-Identifier: Apache-2.0
"""What opening again cost the engines of a race, side by side, in words."""

from collections.abc import Callable, Iterator, Sequence

from compare.results import EngineResult, Opening

NOTHING = "–"
_MS = 1_000


def opening_rows(
    ran: Sequence[EngineResult], duration: Callable[[float], str], size: Callable[[int], str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Two rows for every time that engines were opened again: a title, what it means, and a cell an
    engine.
    """
    for kind, at_ms, openings in side_by_side(ran):
        cells = (_opened(each, duration, size) for each in openings)
        yield (
            f"opened again, {kind} after {duration(at_ms)}",
            "until it knew what is due next; what came from the disk",
            tuple(cells),
        )
        cells = (_delivered(each, duration, size) for each in openings)
        yield "… its first delivery", "so long for so many messages", tuple(cells)


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


def _opened(
    opening: Opening | None, duration: Callable[[float], str], size: Callable[[int], str]
) -> str:
    if opening is None:
        return NOTHING
    return duration(opening.open_s * _MS) + _read(opening.read_bytes, size)


def _delivered(
    opening: Opening | None, duration: Callable[[float], str], size: Callable[[int], str]
) -> str:
    if opening is None or not opening.first_messages:
        return NOTHING
    took = f"{duration(opening.first_s * _MS)} for {opening.first_messages:,}"
    return took + _read(opening.first_read_bytes, size)


def _read(length: int, size: Callable[[int], str]) -> str:
    """What came from the disk, where anything did."""
    return f", {size(length)} read" if length else ""
