# SPDX-License-Identifier: Apache-2.0
"""What the measurements of a conversion say: a table, and a verdict on each bar."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks.machine import facts_text, spread, table

WARM_UP_MESSAGES = 20_000
BAR_RATIO, AIM_RATIO = 2.0, 1.3
BAR_MESSAGES = 4_000_000
BAR_WORKER_BYTES = 600_000_000
FLAT_FACTOR = 1.25
"""So much dearer may a message be between two sizes than between two others."""

_STAGES = ("plan", "write", "seal")


def _middle(rounds: Sequence[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in rounds)


def _ratios(found: dict[str, Any]) -> list[float]:
    pairs = zip(found["convert"], found["copy"], strict=True)
    return [ours["total"] / theirs["total"] for ours, theirs in pairs]


def verdict(value: float, bar: float, reason: str) -> str:
    """Whether a figure is within its bar, and if not by how much and why.

    >>> verdict(1.5, 2.0, "x"), verdict(2.25, 2.0, "the plan takes 1 s")
    ('bar met', '**bar missed by 0.25**: the plan takes 1 s')
    """
    return "bar met" if value <= bar else f"**bar missed by {value - bar:.2f}**: {reason}"


def _floor_s(found: dict[str, Any], bytes_per_s: float) -> float:
    """What the disk alone needs for the bytes of a target."""
    return float(found["convert"][-1]["target_bytes"]) / bytes_per_s


def _because(found: dict[str, Any], bytes_per_s: float) -> str:
    """The largest piece of a conversion, as a reason."""
    seconds = {name: _middle(found["convert"], name) for name in _STAGES}
    floor = _floor_s(found, bytes_per_s)
    reasons = {
        "plan": f"the plan takes {seconds['plan']:.2f} s before a byte is written",
        "write": f"writing takes {seconds['write']:.2f} s, the disk alone needs {floor:.2f} s",
        "seal": f"sealing waits {seconds['seal']:.2f} s for the disk",
    }
    return reasons[max(seconds, key=lambda name: seconds[name])]


def _where(found: dict[str, Any], bytes_per_s: float) -> str:
    """The pieces of a conversion against what they must cost at the least."""
    rounds = found["convert"]
    floor = _floor_s(found, bytes_per_s)
    pieces = [f"{name} {_middle(rounds, name):.2f} s" for name in _STAGES]
    cpu = [f"{role} {_middle(rounds, f'{role}_cpu'):.2f}" for role in ("workers", "driver", "jvm")]
    return (
        f"{', '.join(pieces)}; seconds of processor time: {', '.join(cpu)};"
        f" the disk alone needs {floor:.2f} s for the target's bytes"
    )


def _ratio_verdicts(measured: dict[str, Any]) -> list[str]:
    said = []
    for found in measured["runs"]:
        ratio = statistics.median(_ratios(found))
        where = _where(found, measured["direct_bytes_per_s"])
        if found["messages"] == BAR_MESSAGES:
            aim = "reached" if ratio <= AIM_RATIO else "not reached"
            why = _because(found, measured["direct_bytes_per_s"])
            judged = f"{verdict(ratio, BAR_RATIO, why)}; the aim of {AIM_RATIO} is {aim}"
        else:
            judged = "no bar of its own"
        name = f"{found['messages']:,} messages, {ratio:.2f} × cp + sync"
        said.append(f"- {name}: {judged}. Its pieces: {where}.")
    return said


def _slope_verdict(measured: dict[str, Any]) -> list[str]:
    points = [(each["messages"], _middle(each["convert"], "total")) for each in measured["runs"]]
    steps = [(more - few, later - sooner) for (few, sooner), (more, later) in pairwise(points)]
    slopes = [seconds / messages * 1e6 for messages, seconds in steps if messages > 0]
    if len(slopes) < 2:
        return []
    factor = max(slopes) / max(min(slopes), 1e-9)
    shown = ", ".join(f"{slope:.2f}" for slope in slopes)
    judged = verdict(factor, FLAT_FACTOR, "a message more costs more where there are more")
    if slopes[-1] <= slopes[0]:
        judged = "bar met, cheaper where there are more"
    return [f"- One message more costs, from size to size, {shown} µs: {judged}."]


def _memory_verdict(measured: dict[str, Any]) -> list[str]:
    worker = max(each["memory"]["worker_private_bytes"] for each in measured["runs"])
    drivers = [
        f"{each['memory']['driver_private_bytes'] / 2**20:.0f} MiB at {each['messages']:,}"
        for each in measured["runs"]
    ]
    judged = verdict(worker / 1e6, BAR_WORKER_BYTES / 1e6, "MB more than allowed")
    sentence = (
        f"- Private memory of a worker, in a round that was not timed: at most"
        f" {worker / 2**20:.0f} MiB: {judged}. The driver, which holds the plan:"
        f" {', '.join(drivers)}."
    )
    return [sentence]


def report_text(measured: dict[str, Any]) -> str:
    """What was measured, for people."""
    rows = []
    for found in measured["runs"]:
        stages = [spread([each[name] for each in found["convert"]]) for name in _STAGES]
        totals = [each["total"] for each in found["convert"]]
        rows.append(
            (
                f"{found['messages']:,}",
                len(totals),
                spread([each["total"] for each in found["copy"]]),
                *stages,
                spread(totals),
                f"**{spread(_ratios(found))}**",
                f"{statistics.median(totals) / found['messages'] * 1e6:.2f}",
            )
        )
    head = ("messages", "rounds", "cp + sync s", "plan s", "write s", "seal s", "total s")
    verdicts = [
        *_ratio_verdicts(measured),
        *_slope_verdict(measured),
        *_memory_verdict(measured),
    ]
    first, second = measured["cold_s"]
    made = [f"{each['messages']:,} in {each['generate_s']:.1f} s" for each in measured["runs"]]
    last = measured["runs"][-1]
    target_gb = last["convert"][-1]["target_bytes"] / 1e9
    return f"""# Conversion next to cp + sync

{facts_text(measured["facts"])}

Rounds in turns after one that is thrown away, memory warmed before each; median (least–most).
Ratios are round by round. The disk takes {measured["direct_bytes_per_s"] / 1e9:.2f} GB/s directly.

{table((*head, "ratio", "µs each"), rows)}

{chr(10).join(verdicts)}

Cold: the Spark session took {measured["spark_start_s"]:.1f} s to start; the first conversion in it,
of {WARM_UP_MESSAGES:,} messages, {first:.1f} s, the next {second:.1f} s.

At {last["messages"]:,} messages cp copied {last["commit_log_bytes"] / 1e9:.2f} GB, the target takes
{target_gb:.2f} GB. Sources were generated in: {", ".join(made)}."""
