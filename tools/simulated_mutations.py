# SPDX-License-Identifier: Apache-2.0
"""Asks after how many random runs of the simulation a mutation of the product is found.

`python -m tools.simulated_mutations` applies every mutation of tools/mutations.py to a copy of the
project, one at a time, and lets random runs look for it until one fails; with names, only those.
A line says for each which seed found it, or that none did. A mutation that no run finds is not a
hole in the tests, for each has a test of its own: it is one that random runs cannot meet yet.
"""

import argparse
import re
import subprocess
import sys

from tools.mutations import Mutation, chosen_of, mutated

FIRST_SEED = 1


def found_by(mutation: Mutation, seeds: int) -> int | None:
    """The first of so many seeds whose run fails on the mutated product; None for none. Raises
    RuntimeError where the runs ended otherwise.
    """
    with mutated(mutation) as root:
        module = "tests.simulation.random_runs"
        command = [sys.executable, "-m", module, "--seeds", str(seeds), "--first", str(FIRST_SEED)]
        run = subprocess.run(
            [*command, "--until-wrong"], cwd=root, capture_output=True, text=True, check=False
        )
    seed = re.search(r"^seed (\d+) ", run.stdout, re.M)
    if run.returncode not in (0, 1) or (run.returncode == 1) != (seed is not None):
        raise RuntimeError(f"{mutation.name}: {run.stdout[-1000:]}{run.stderr[-2000:]}")
    return None if seed is None else int(seed[1])


def main() -> None:
    """Run what is asked for, and tell of each."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulated_mutations")
    parser.add_argument("names", nargs="*", help="of mutations; default: all")
    parser.add_argument("--seeds", type=int, default=500, help="how many runs look for each")
    asked = parser.parse_args()
    chosen, found = chosen_of(asked.names), 0
    for mutation in chosen:
        seed = found_by(mutation, asked.seeds)
        found += seed is not None
        where = f"no run of {asked.seeds}" if seed is None else f"run {seed - FIRST_SEED + 1}"
        print(f"{where:>16}  {mutation.name}", flush=True)
    print(f"{found} of {len(chosen)} mutations found within {asked.seeds} runs")


if __name__ == "__main__":
    main()
