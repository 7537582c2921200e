# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own engines, in a JVM of their own, do on a store of theirs what they are told to,
at the time that they are told.
"""

import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from compare.rocketmq.jars import classes, jars
from compare.rocketmq.java_engines import JAVA_ROOT, OPENED
from message_store.format import properties as names
from message_store.format.message import StoredMessage

_DEADLINE_S = 200.0
_STORED_BY_BROKERS = (names.REAL_TOPIC, names.REAL_QUEUE_ID, names.TIMER_OUT_MS)
"""What a broker adds to a message that waits."""


def each_version(*versions: str) -> list[Any]:
    """Parameters of a fixture that is a witness of one of these versions."""
    return [pytest.param(each, marks=pytest.mark.interop(each)) for each in versions]


class Witness:
    """A JVM with one of them, which `tests/interop/java/Witness.java` tells how to speak to."""

    def __init__(self, version: str, engine: str, scratch: Path) -> None:
        sources = [JAVA_ROOT / name for name in ("Entrant.java", f"{engine}Entrant.java")]
        here = Path(__file__).parent / "java"
        ours = [here / name for name in ("SetClock.java", "Witness.java", f"{engine}Witness.java")]
        made = classes(version, "witness", [*sources, *ours])
        command = [
            "java", "-Xmx1g", *OPENED, f"-Duser.home={scratch}", "-cp",
            f"{made}:{jars(version)}/*", "SetClock", f"{engine}Witness",
        ]  # fmt: skip
        self.log = scratch / "witness.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def ask(self, *words: object) -> str:
        """Say this, and return the answer."""
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        giving_up = threading.Timer(_DEADLINE_S, self._process.kill)
        giving_up.start()
        try:
            print(*words, file=pipe_in, flush=True)
            answer = pipe_out.readline()
        finally:
            giving_up.cancel()
        assert answer, (words, self.log.read_text(errors="replace")[-4_000:])
        return answer.rstrip("\n")

    def put(self, waiting: StoredMessage, due_ms: int | None = None) -> None:
        """Give it the message that waits in this record of ours, as a producer gave it: with its
        level, or with the time when it is due.
        """
        properties = b"".join(
            each + b"\x02"
            for each in waiting.properties_text.split(b"\x02")
            if each and each.split(b"\x01")[0].decode() not in _STORED_BY_BROKERS
        )
        place = waiting.properties[names.REAL_TOPIC], waiting.properties[names.REAL_QUEUE_ID]
        due = [] if due_ms is None else [due_ms]
        assert self.ask("put", *place, waiting.body.hex(), properties.hex(), *due) == "PUT_OK"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.communicate()
