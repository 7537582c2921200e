# SPDX-License-Identifier: Apache-2.0
"""Sources that were generated and not sent, and what becomes of their messages.

For tests in which it matters how many messages there are or when they are due, and not what they
hold.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.interop.account import once
from tests.interop.broker import Broker
from tests.interop.judge import Judge, Received
from tests.interop.ours import delaywheel, delaywheel_lines


@attrs.frozen
class Converted:
    """A generated source, its conversion, and what the conversion said."""

    source: Path
    target: Path
    report: Mapping[str, Any]

    @property
    def topics(self) -> list[str]:
        """Where the messages go, as the target's own route table has it."""
        topics = json.loads((self.target / "config" / "topics.json").read_text(encoding="utf-8"))
        return sorted(topics["topicConfigTable"])

    def waiting(self) -> list[dict[str, Any]]:
        """List what waited in the source, a line a message."""
        return delaywheel_lines("pending", self.source)


def generate(source: Path, messages: int, *, level: int, generated_ms: int, seed: int = 5) -> Path:
    """Make a store of which all messages wait in one level, and return it."""
    delaywheel(
        "generate", source, "--messages", messages, "--body-bytes", 100, "--levels", level,
        "--topics", 3, "--seed", seed, "--now", generated_ms, "--commit-log-file-bytes", 64 << 20,
    )  # fmt: skip
    return source


def receive(broker: Broker, judge: Judge, topics: Sequence[str], expect: int) -> list[Received]:
    """Open a store and return what a fresh group receives, `expect` messages if all goes well."""
    with broker, judge.consume(topics, "fresh", expect=expect, deadline_s=300) as consumer:
        return once(consumer.wait())


def faults(waiting: Sequence[Mapping[str, Any]], received: Sequence[Received]) -> dict[str, int]:
    """Count what is missing, repeated, strange or early; {} is right."""
    due = {each["unique_key"]: each["due_ms"] for each in waiting}
    found = Counter(each.unique_key for each in received)
    counts = {
        "missing": len(due.keys() - found.keys()),
        "repeated": sum(1 for times in found.values() if times > 1),
        "unexpected": len(found.keys() - due.keys()),
        "early": sum(1 for r in received if r.stored_ms < due.get(r.unique_key, 0)),
    }
    return {fault: count for fault, count in counts.items() if count}
