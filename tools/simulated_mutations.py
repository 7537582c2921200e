# SPDX-License-Identifier: Apache-2.0
"""Asks after how many random runs of the simulation a mutation of the product is found.

`python -m tools.simulated_mutations` applies every mutation of mutations.toml to a copy of the
project, one at a time, and lets random runs look for it until one fails; with names, only those.
The runs are of kinds that can meet the mutation: the path of the file tells which, or ``DAMAGED``.
Runs that failed once come first. A line says for each which run found it, or that none did. Such a
mutation is no hole in the tests, for each has a test of its own: random runs cannot meet it yet.
"""

import argparse
import re
import subprocess
import sys
from typing import Final

from tools.mutations import Mutation, chosen_of, mutated

FIRST_SEED = 1

KINDS: Final = {
    "consumer_groups": ("levels", "wheel", "hierarchy"),
    "legacy_levels": ("levels",),
    "timer_wheel/hierarchy": ("hierarchy",),
    "timer_wheel/handover": ("wheel", "hierarchy"),
    "timer_wheel": ("wheel", "hierarchy"),
    "migrate/spark": (),
    "migrate": ("migration",),
    "message_store/kernels/cache.py": (),
    "message_store": ("levels", "wheel", "hierarchy"),
}
"""With what the runs begin, by the longest part of the path; no kinds: no run can meet it."""

DAMAGED: Final = frozenset(
    (
        "made-anew-by-flags-alone",
        "marker-known-by-its-flag-alone",
        "entries-behind-the-end-of-the-log-believed",
        "hang-marker-as-message",
        "queue-entry-beyond-the-log",
        "record-length-believed",
        "log-cut-before-its-synced-end",
        "damaged-marker-not-told",
        "unit-of-another-record",
        "order-within-a-file",
        "neighbours-tell-no-slot",
        "wheel-file-tells-no-slot",
        "hash-to-the-bit",
        "link-of-a-unit-believed",
        "place-of-a-unit-believed",
        "unit-of-before-the-log-given-a-place",
        "unit-without-record-not-read",
        "last-unit-believed",
        "marker-of-two-keys",
        "entry-that-leads-to-another",
        "closed-stores-repeat",
        "end-of-the-synced-log-not-noted",
        "wheel-refused-behind-recovery",
        "names-only-behind-the-mark",
        "parked-forgotten",
    )
)
"""Guards against damage, which runs with a damaged file look for."""

KILLED: Final = frozenset(
    (
        "taken-back-goes-to-the-new-wheel",
        "older-markers-in-slots-of-today",
        "index-made-anew-from-the-queue-alone",
        "given-back-without-the-slots-of-the-wheel",
        "a-record-that-names-itself-is-done",
        "rolled-record-taken-for-done",
        "delivery-names-nothing",
        "hierarchy-delivery-names-nothing",
        "entries-taken-in-though-named",
        "rolled-looked-for-among-the-near-alone",
        "named-copy-counts-for-an-equal-message",
        "neutral-before-a-mark-says-so",
        "cancel-answers-of-an-equal-message",
        "level-one-ms-early",
        "unit-of-another-slot",
        "what-a-broker-did-is-not-written-down",
        "due-at-once-renewed",
        "wheel-listing-of-two-moments",
        "wheel-listing-with-the-markers-of-later",
        "second-writer",
        "slot-backwards",
        "batch-order-of-a-level",
        "handle-of-any-width",
        "hierarchy-handle-of-any-width",
        "rebuilt-entry-by-its-time-alone",
        "merged-widths-tell-what-was-delivered",
        "beyond-a-round-of-finer-slots",
        "placing-not-announced",
        "units-noted-before-they-are-on-the-disk",
        "wheel-file-of-a-killed-process-believed",
        "flush-after-a-cancel-of-the-levels-syncs-the-log-alone",
        "names-of-small-files-not-synced",
        "failed-sync-forgotten",
        "the-hand-moves-back",
        "queue-read-twice",
        "log-that-grows-not-read-on",
        "mark-read-after-the-queues",
    )
)
"""Guards of equal messages, of kills and of changes of owner: runs with more of those look."""


MOVED: Final = frozenset(
    (
        "a-stopped-rescheduling-is-not-finished",
        "an-entry-is-neutralised-before-its-new-record-is-synced",
        "a-message-moves-within-the-slot-of-its-marker",
        "a-marker-takes-a-twin-of-what-moves",
        "refused-behind-recovery-for-a-rescheduling",
        "a-finished-rescheduling-refuses-another-engine",
    )
)
"""Guards of messages that move, which some of the runs with the focus on kills look for."""
GROUPED: Final = frozenset(("the-journal-of-a-killed-process-is-not-synced",))
"""Guards of what groups wrote down, in other packages."""


def kinds_of(mutation: Mutation) -> tuple[str, ...]:
    """Of which kinds the runs are that can meet a mutation."""
    if mutation.name in MOVED:
        return ("moves",)
    parts = [part for part in KINDS if mutation.path.startswith(part)]
    return KINDS[max(parts, key=len)] if parts else ()


def found_by(mutation: Mutation, seeds: int, processes: int) -> int | None:
    """Which of so many runs failed first on the mutated product; None for none. Raises RuntimeError
    where the runs ended otherwise.
    """
    module = "tests.simulation.random_runs"
    command = [sys.executable, "-m", module, "--first", str(FIRST_SEED), "--until-wrong"]
    focus = ["--failed-once"]
    if mutation.path.startswith("consumer_groups/"):
        focus += ["--focus", "groups"]
    for word, names in (("damage", DAMAGED), ("kills", KILLED | MOVED), ("groups", GROUPED)):
        focus = ["--focus", word] if mutation.name in names else focus
    command += ["--seeds", str(seeds), "--processes", str(processes), *focus]
    command += ["--kinds", *kinds_of(mutation)]
    with mutated(mutation) as root:
        run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    number = re.search(r"^it was run (\d+)$", run.stdout, re.M)
    if run.returncode not in (0, 1) or (run.returncode == 1) != (number is not None):
        raise RuntimeError(f"{mutation.name}: {run.stdout[-1000:]}{run.stderr[-2000:]}")
    return None if number is None else int(number[1])


def main() -> None:
    """Run what is asked for, and tell of each."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulated_mutations")
    parser.add_argument("names", nargs="*", help="of mutations; default: all")
    parser.add_argument("--seeds", type=int, default=500, help="how many runs look for each")
    parser.add_argument("--processes", type=int, default=2, help="how many run at once")
    asked = parser.parse_args()
    chosen = [each for each in chosen_of(asked.names) if kinds_of(each)]
    found = 0
    for mutation in chosen:
        number = found_by(mutation, asked.seeds, asked.processes)
        found += number is not None
        where = f"no run of {asked.seeds}" if number is None else f"run {number}"
        print(f"{where:>16}  {mutation.name}", flush=True)
    print(f"{found} of {len(chosen)} mutations found within {asked.seeds} runs")


if __name__ == "__main__":
    main()
