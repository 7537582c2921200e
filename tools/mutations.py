# SPDX-License-Identifier: Apache-2.0
"""Takes guards out of the product, one at a time, and asks whether a test notices.

`python -m tools.mutations` applies every mutation of mutations.toml to a copy of the project, runs
the test that the mutation names, and prints a line for each; with names, only those. A mutation
that its test does not notice is a hole in the tests, and the exit code is 1. The copy is thrown
away: the working tree is never changed. `make nightly` runs all of them (tests/test_mutations.py).
"""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).resolve().parent.parent
COPY: Final = ROOT / "build" / "mutated"
"""Always the same place: compiled kernels are found again by the path of their sources."""

TIMEOUT_S: Final = 600
PASSED, FAILED = 0, 1
"""What pytest answers when all tests passed, and when a test failed."""


@attrs.frozen
class Mutation:
    """One guard taken out: ``old`` stands once in the file and becomes ``new``; ``test`` is the
    pytest name of the test that notices.
    """

    name: str
    path: str
    old: str
    new: str
    test: str

    def apply(self, root: Path) -> None:
        """Change the file below ``root``. Raises ValueError unless ``old`` stands there once."""
        file = root / self.path
        text = file.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: stands {text.count(self.old)} times in {self.path}")
        file.write_text(text.replace(self.old, self.new), encoding="utf-8")


LIST: Final = Path(__file__).with_suffix(".toml")
MUTATIONS: Final = tuple(
    Mutation(**facts) for facts in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutation"]
)


def copy_of_the_project(place: Path) -> Path:
    """All files that git knows, and those that it does not ignore, below ``place``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name, follow_symlinks=False)
    return place


@contextmanager
def mutated(mutation: Mutation) -> Iterator[Path]:
    """A copy of the project with this mutation, which is there as long as it is needed."""
    shutil.rmtree(COPY, ignore_errors=True)
    try:
        root = copy_of_the_project(COPY)
        mutation.apply(root)
        yield root
    finally:
        shutil.rmtree(COPY, ignore_errors=True)


def is_noticed(mutation: Mutation) -> bool:
    """Whether the mutation's test fails on the mutated product. Raises RuntimeError when the test
    could not be run at all.
    """
    with mutated(mutation) as root:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, "--no-header", mutation.test],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if run.returncode not in (PASSED, FAILED):
        raise RuntimeError(f"{mutation.name}: {mutation.test} did not run\n{run.stdout[-2000:]}")
    return run.returncode == FAILED


def chosen_of(names: list[str]) -> list[Mutation]:
    """The mutations of these names, or all. Raises SystemExit for a name that none has."""
    if unknown := set(names) - {mutation.name for mutation in MUTATIONS}:
        raise SystemExit(f"no such mutation: {', '.join(sorted(unknown))}")
    return [mutation for mutation in MUTATIONS if not names or mutation.name in names]


def main(names: list[str]) -> int:
    """Run the mutations of these names, or all; the exit code."""
    chosen, missed = chosen_of(names), 0
    for mutation in chosen:
        noticed = is_noticed(mutation)
        missed += not noticed
        word = "noticed" if noticed else "MISSED "
        print(f"{word}  {mutation.name}: {mutation.test}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
