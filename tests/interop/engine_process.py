# SPDX-License-Identifier: Apache-2.0
"""One of our engines as the owner of a store, in a process of its own: it can be killed like any.

A program: ``python -m tests.interop.engine_process SPEC``, SPEC being JSON. It advances by the real
clock ten times a second and flushes as often, takes commands as JSON lines and answers each with
one. It closes its store when it is told to, or when its input ends. It looks ahead and makes files
ahead as it does with stores of many messages, so that brokers see what that leaves.
"""

import base64
import contextlib
import json
import queue
import sys
import threading
from pathlib import Path
from typing import Any, Final

from legacy_levels.engine.store import LevelStore
from message_store.base.clock import SystemClock
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.message import Message
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import AfterMs, AtLevel, AtMs, DelayStore, Due
from message_store.writing import pages_ahead
from message_store.writing.settings import StoreSettings
from timer_wheel.wheel import turn as foresight
from timer_wheel.wheel.store import WheelStore

BROKER_NAME: Final = "judge-a"
_STEP_S: Final = 0.1

Line = dict[str, Any]


def open_store(spec: Line) -> DelayStore:
    """Open the store that the spec names, as a broker of its version would find it."""
    path, dialect = Path(spec["root"]), Dialect(spec["version"].rpartition(".")[0])
    settings = StoreSettings(
        commit_log_file_bytes=spec["commitLogFileBytes"],
        queue_file_bytes=spec["queueFileBytes"],
        timer_log_file_bytes=spec["timerLogFileBytes"],
        broker_name=BROKER_NAME,
    )
    if spec["engine"] == "levels":
        levels = DelayLevels.parse(spec["levelTable"])
        return LevelStore.open(path, levels=levels, dialect=dialect, settings=settings)
    return WheelStore.open(
        path, dialect=dialect, settings=settings, roll_window_slots=spec["rollWindowSlots"]
    )


class Owner:
    """A store that is served: commands in, answers out."""

    def __init__(self, store: DelayStore) -> None:
        self.store = store
        self.clock = SystemClock()
        self.rests = False

    def serve(self) -> None:
        """Advance and obey until the last command."""
        commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(commands,), daemon=True).start()
        _say({"answer": "open"})
        while True:
            with contextlib.suppress(queue.Empty):
                command = json.loads(commands.get(timeout=_STEP_S))
                if command["do"] == "close":
                    break
                _say({"answer": [getattr(self, command["do"])(each) for each in command["each"]]})
            if not self.rests:
                self.store.advance(self.clock.now_ms())
                self.store.flush()
        self.store.close()
        _say({"answer": "closed"})

    def schedule(self, line: Line) -> Line:
        """Take a message in the form in which the judge takes it."""
        now_ms = self.clock.now_ms()
        message = Message(
            topic=line["topic"],
            body=base64.b64decode(line["body"]),
            tags=line.get("tags"),
            keys=line["keys"],
            properties=line["properties"],
            queue_id=line["queueId"],
        )
        receipt = self.store.schedule(message, _due(line))
        return {
            "n": line["n"],
            "status": "SEND_OK",
            "sendTime": now_ms,
            "uniqKey": receipt.unique_key,
            "queueId": line["queueId"],
            "recallHandle": receipt.handle,
        }

    def rest(self, _nothing: Line) -> None:
        """Advance no more."""
        self.rests = True

    def cancel(self, line: Line) -> str:
        """Take a message back by its handle; without one, by the handle that is its due."""
        handle = line["recallHandle"]
        if handle is None:
            waiting = list(self.store.pending(unique_key=line["uniqKey"]))
            if not waiting:
                return "does not wait"
            parts = (waiting[0].topic, BROKER_NAME, waiting[0].due_ms, line["uniqKey"])
            handle = RecallHandle(*parts).text()
        return self.store.cancel(handle).value

    def waits(self, line: Line) -> bool:
        """Say whether a message is still to be delivered."""
        return any(True for _ in self.store.pending(unique_key=line["uniqKey"]))


def _due(line: Line) -> Due:
    if "delayLevel" in line:
        return AtLevel(line["delayLevel"])
    if "delayMs" in line:
        return AfterMs(line["delayMs"])
    if "delaySec" in line:
        return AfterMs(line["delaySec"] * 1000)
    return AtMs(line["deliverMs"])


def _listen(commands: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        commands.put(line)
    commands.put('{"do": "close"}')


def _say(line: Line) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    pages_ahead.AHEAD_FROM_BYTES = foresight.WORTH_IT_UNITS = 1
    Owner(open_store(json.loads(sys.argv[1]))).serve()
