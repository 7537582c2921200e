# SPDX-License-Identifier: Apache-2.0
"""The hierarchical wheel under the load that a published design of its kind was measured with, and
with much that waits: ``python -m benchmarks.hierarchy``, some ten minutes on a quiet machine.

The published figures: 14,000 messages a second in and out with delays of 30 s to 10 min, on eight
cores: a send takes 1.2 ms on average, lateness P50 301, P90 690, P99 904, P99.9 979 ms, 30 % of the
cores, about twice the cost of ordinary messages.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.engines.lateness import Steady, steady
from benchmarks.engines.opening import in_a_process, opening
from benchmarks.machine import RESULTS, facts, keeping, prewarm
from compare.running.work_files import forget_pages


def steady_runs(options: argparse.Namespace, place: Path, found: list[dict[str, Any]]) -> None:
    """The load at each precision, the same on a wheel in files, and ordinary messages beside it:
    stored at the same rate, flushed as often, and none of them due.
    """
    common: dict[str, Any] = {
        "rate": options.rate,
        "seconds": options.seconds,
        "body_bytes": options.body_bytes,
        "leaves_pending": True,
    }
    far: dict[str, Any] = {"least_delay_ms": 86_400_000, "longest_delay_ms": 172_800_000}
    delayed: dict[str, Any] = {
        "least_delay_ms": 30_000,
        "longest_delay_ms": options.longest_delay_ms,
        "begins_full": True,
    }
    runs: list[tuple[str, str, int, dict[str, Any]]] = [
        ("ordinary messages", "hierarchy", 1_000, far),
        *(("hierarchy", "hierarchy", each_ms, delayed) for each_ms in options.precisions),
        ("wheel in files", "wheel", 1_000, delayed),
    ]
    for name, engine, precision_ms, delays in runs:
        prewarm(options.prewarm_bytes)
        wanted = Steady(precision_ms=precision_ms, **common, **delays)
        found.append({"what": name} | steady(engine, place, wanted))
        print(name, precision_ms, found[-1]["seen - due"], found[-1]["cpu percent"])


def openings(options: argparse.Namespace, place: Path, found: list[dict[str, Any]]) -> None:
    """Stores with much in them, opened warm and with nothing in the page cache."""
    for count in options.pending:
        for engine in ("hierarchy", "wheel"):
            home = place / f"{engine}-{count}"
            home.mkdir()
            one = opening(engine, home, count, options.rounds)
            forget_pages(home)
            one["cold"] = in_a_process("open", engine, home / "store", "close")
            found.append(one)
            for file in sorted(home.rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()


def arguments() -> argparse.Namespace:
    """How much of everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=14_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--longest-delay-ms", type=int, default=600_000)
    parser.add_argument("--precisions", type=int, nargs="+", default=[1_000, 100, 1])
    parser.add_argument("--pending", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prewarm-bytes", type=int, default=5 << 30)
    parser.add_argument("--directory", type=Path, help="where to work; 10 million need 12 GB")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Measure, print, keep."""
    options = arguments()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        measured: dict[str, Any] = {
            "facts": facts(place),
            "rounds": options.rounds,
            "longest_delay_ms": options.longest_delay_ms,
            "steady": [],
            "opening": [],
        }
        with keeping("hierarchy", measured, options.results):
            steady_runs(options, place, measured["steady"])
            openings(options, place, measured["opening"])


if __name__ == "__main__":
    main()
