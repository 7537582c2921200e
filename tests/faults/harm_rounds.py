# SPDX-License-Identifier: Apache-2.0
"""Round after round a copy of a store is harmed and used, in a process of its own, for a store that
brings it down must not bring down the tests.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.faults.damage import Damage, copy_store, damage_one
from tests.faults.lies import lie_once

_ROOT = Path(__file__).resolve().parent.parent.parent
_HARMS = {"damages": damage_one, "lies": lie_once}
_PATIENCE_S = 300
_ADDRESS_BYTES = 8 << 30


def harm_rounds(
    kind: str, shape: str, pristine: Path, seeds: range, *, module: str
) -> list[tuple[int, Damage, dict[str, Any]]]:
    """For each seed what was done to a copy of the store, and what came of it; fails where the
    process, the ``main`` of ``module``, went down.
    """
    command = [sys.executable, "-m", module, kind, shape, str(pristine)]
    span = str(seeds.start), str(seeds.stop)
    run = subprocess.run([*command, *span], cwd=_ROOT, capture_output=True, text=True)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, (lines[-1:], run.stderr[-3_000:])
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [(seed, Damage(**what), came) for (seed, what), (_, came) in pairs]


def run_rounds(
    arguments: Sequence[str],
    exercise: Callable[[str, Path], attrs.AttrsInstance],
    harmed: Callable[[str, Path], Path] = lambda _, copy: copy,
) -> None:
    """What that process does, with the arguments that it was given: ``exercise`` is for a shape and
    a copy, of which ``harmed`` is the store that is harmed.
    """
    kind, shape, pristine = arguments[0], arguments[1], Path(arguments[2])
    first, last = map(int, arguments[3:])
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    copy = pristine.with_name(f"{pristine.name}-{kind}-{first}")
    for seed in range(first, last):
        shutil.rmtree(copy, ignore_errors=True)
        copy_store(pristine, copy)
        _say(seed, _HARMS[kind](harmed(shape, copy), random.Random(seed)))
        signal.alarm(_PATIENCE_S)
        outcome = exercise(shape, copy)
        signal.alarm(0)
        _say(seed, outcome)
    shutil.rmtree(copy, ignore_errors=True)


def _say(seed: int, what: attrs.AttrsInstance) -> None:
    sys.stdout.write(json.dumps([seed, attrs.asdict(what)]) + "\n")
    sys.stdout.flush()
