# SPDX-License-Identifier: Apache-2.0
"""How long one command takes to convert many small stores, of which three cannot be converted.

The command is run from the shell, with a manifest: Spark's start is part of it. Of the three one
has a bad record, one was not stopped, and one is no store. The first round is thrown away: it
compiles kernels, and has the stores read from the disk.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bars import FLEET_MESSAGES, FLEET_STORES
from benchmarks.convert import settle
from benchmarks.machine import RESULTS, facts, keeping, tell
from benchmarks.shapes import damage_first_body
from legacy_levels.generate.store import generate_level_store
from message_store.base.clock import SystemClock, stopwatch_s
from message_store.files.store_root import StoreRoot

_ROOT = Path(__file__).resolve().parent.parent
BROKEN = 3


def make_sources(place: Path, stores: int, messages: int) -> list[Path]:
    """The stores, those in the middle of the list broken."""
    sources = [place / "sources" / f"broker-{number:03d}" for number in range(stores)]
    now_ms = SystemClock().now_ms()
    for number, source in enumerate(sources):
        generate_level_store(source, messages=messages, now_ms=now_ms, seed=number)
    first = (stores - BROKEN) // 2
    bad, unclean, none = sources[first : first + BROKEN]
    damage_first_body(bad)
    StoreRoot(unclean).abort.touch()
    shutil.rmtree(none)
    none.mkdir()
    return sources


def convert_all(place: Path, sources: list[Path]) -> float:
    """Seconds that the command takes; the targets are removed."""
    targets = place / "targets"
    lines = [shlex.join([str(source), str(targets / source.name)]) for source in sources]
    manifest = place / "manifest"
    manifest.write_text("\n".join(lines), "utf-8")
    flags = ["--manifest", str(manifest), "--json", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    settle()
    started = stopwatch_s()
    done = subprocess.run(
        [sys.executable, "-m", "cli", "convert", *flags],
        env=environment,
        capture_output=True,
        check=False,
    )
    took = stopwatch_s() - started
    states = [entry["state"] for entry in json.loads(done.stdout or "[]")]
    wanted = {"converted": len(sources) - BROKEN, "failed": BROKEN}
    if {state: states.count(state) for state in states} != wanted:
        raise RuntimeError(f"not as it should be: {states} {done.stderr.decode()}")
    shutil.rmtree(targets)
    return took


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=int, default=FLEET_STORES)
    parser.add_argument("--messages", type=int, default=FLEET_MESSAGES, help="in each store")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where to work; 2 GB")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        measured: dict[str, Any] = {
            "facts": facts(place),
            "stores": options.stores,
            "messages": options.messages,
            "broken": BROKEN,
            "s": [],
        }
        tell(f"making {options.stores} stores")
        sources = make_sources(place, options.stores, options.messages)
        with keeping("fleet", measured, options.results):
            for number in range(options.rounds + 1):
                tell(f"round {number} of {options.rounds}")
                took = convert_all(place, sources)
                if number:
                    measured["s"].append(took)


if __name__ == "__main__":
    main()
