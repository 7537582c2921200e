# SPDX-License-Identifier: Apache-2.0
"""Who may own a store: a stock broker, or one of our engines, each seen in the same way."""

import json
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from tests.interop import processes
from tests.interop.broker import Broker
from tests.interop.judge import Consumption, Judge, Received, Sent
from tests.interop.ours import ROOT
from tests.interop.workload import QUEUES, TOPICS, Outgoing

PATIENCE_S: Final = 240.0
_LOOK_S: Final = 0.1


class Owner(Protocol):
    """Takes messages, delivers them, takes some back, and leaves the store to the next."""

    name: str

    def start(self) -> None:
        """Open the store, and return when messages can be sent."""

    def send(self, messages: Sequence[Outgoing]) -> list[Sent]:
        """Hand messages over, and return what became of them in their order."""

    def take_back(self, sent: Sequence[Sent]) -> list[str]:
        """Cancel messages; return the unique keys for which that was confirmed."""

    def wait_for(self, unique_keys: Collection[str]) -> None:
        """Return when all of these are delivered, by whomever."""

    def leave(self, *, killed: bool) -> None:
        """End cleanly, or be killed."""


class OwnerError(Exception):
    """An owner that did not do what was asked of it in time."""


class OurOwner:
    """An engine of ours in a process of its own; `spec` is what `engine_process` takes."""

    def __init__(self, spec: Mapping[str, Any], scratch: Path) -> None:
        self.name = f"ours ({spec['engine']} for {spec['version']})"
        self._spec = dict(spec)
        self._log = scratch / "owner.out"
        self._read = 0
        scratch.mkdir(parents=True)

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.interop.engine_process", json.dumps(self._spec)]
        self._process = processes.spawn(command, self._log, {"PYTHONPATH": str(ROOT)})
        self._answer()

    def send(self, messages: Sequence[Outgoing]) -> list[Sent]:
        lines = [{**each.line(), "queueId": each.number % QUEUES} for each in messages]
        answer = self._ask("schedule", lines)
        return [
            Sent(
                message=message,
                status=line["status"],
                sent_ms=line["sendTime"],
                acknowledged_ms=line["sendTime"],
                unique_key=line["uniqKey"],
                queue_id=line["queueId"],
                queue_offset=-1,
                recall_handle=line["recallHandle"],
            )
            for message, line in zip(messages, answer, strict=True)
        ]

    def take_back(self, sent: Sequence[Sent]) -> list[str]:
        lines = [{"recallHandle": each.recall_handle, "uniqKey": each.unique_key} for each in sent]
        answers = zip(sent, self._ask("cancel", lines), strict=True)
        return [each.unique_key for each, answer in answers if answer == "cancelled"]

    def wait_for(self, unique_keys: Collection[str]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        waiting = list(unique_keys)
        while waiting:
            answers = self._ask("waits", [{"uniqKey": each} for each in waiting])
            waiting = [key for key, waits in zip(waiting, answers, strict=True) if waits]
            if waiting and time.monotonic() > give_up:
                raise OwnerError(f"{self.name}: {len(waiting)} not delivered: {waiting[0]}")
            time.sleep(_LOOK_S)

    def leave(self, *, killed: bool) -> None:
        if killed:
            processes.kill(self._process)
            return
        self._ask("close", ())
        if (code := processes.wait(self._process, PATIENCE_S)) != 0:
            raise OwnerError(f"{self.name} ended with {code}\n{self._complaints()}")

    def rest(self) -> None:
        """Deliver nothing more: what is sent now is for the next owner."""
        self._ask("rest", [{}])

    def _ask(self, command: str, each: Iterable[Mapping[str, Any]]) -> Any:
        line = json.dumps({"do": command, "each": list(each)}) + "\n"
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        """Wait for the next line that it says; the log may hold other lines too."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            with self._log.open("rb") as log:
                log.seek(self._read)
                line = log.readline()
            if line.endswith(b"\n"):
                self._read += len(line)
                if line.startswith(b"{"):
                    return json.loads(line)["answer"]
            elif self._process.poll() is not None or time.monotonic() > give_up:
                raise OwnerError(f"{self.name}: no answer\n{self._complaints()}")
            else:
                time.sleep(_LOOK_S / 10)

    def _complaints(self) -> str:
        lines = processes.tail(self._log, 200).splitlines()
        return "\n".join(line for line in lines if not line.startswith("{"))


class BrokerOwner:
    """A broker, and a fresh group that sees all that stands in the topics, from the beginning."""

    def __init__(self, broker: Broker, judge: Judge, group: str) -> None:
        self.name = broker.version
        self._broker, self._judge, self._group = broker, judge, group
        self._consumer: Consumption | None = None
        self.received: list[Received] = []

    def start(self) -> None:
        self._broker.start()
        self._consumer = self._judge.consume(
            TOPICS, self._group, deadline_s=2 * PATIENCE_S, settle_s=2
        )

    def send(self, messages: Sequence[Outgoing]) -> list[Sent]:
        return self._judge.send(messages)

    def take_back(self, sent: Sequence[Sent]) -> list[str]:
        return sorted(self._judge.recall(sent))

    def wait_for(self, unique_keys: Collection[str]) -> None:
        assert self._consumer is not None
        give_up = time.monotonic() + PATIENCE_S
        while missing := set(unique_keys) - self._consumer.keys_so_far():
            if time.monotonic() > give_up:
                raise OwnerError(f"{self.name}: {len(missing)} not delivered: {min(missing)}")
            time.sleep(_LOOK_S)

    def leave(self, *, killed: bool) -> None:
        assert self._consumer is not None
        if killed:
            self._broker.kill()
        self.received = self._consumer.stop()
        if not killed:
            self._broker.stop()
