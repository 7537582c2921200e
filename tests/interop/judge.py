# SPDX-License-Identifier: Apache-2.0
"""The official Java client, driven from Python: send, consume, recall, read a queue raw."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs

from tests.interop import processes
from tests.interop.broker import Broker
from tests.interop.jars import client_of, jars, judge_classes
from tests.interop.workload import Outgoing

# A busy machine is no reason to fail: a client boots in two seconds when nothing else runs.
_BOOT_S: Final = 180.0
_OPENS: Final = ("--add-opens=java.base/java.nio=ALL-UNNAMED",)
_QUIET: Final = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p [%t] %logger{0} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


class JudgeError(Exception):
    """The Java client failed; the text is what it said."""


@attrs.frozen
class Sent:
    """What became of one message that was handed to the producer."""

    message: Outgoing
    status: str
    sent_ms: int
    acknowledged_ms: int
    unique_key: str
    queue_id: int
    queue_offset: int
    recall_handle: str | None = None
    error: str | None = None

    @property
    def accepted(self) -> bool:
        """Whether the broker confirmed that it stored the message."""
        return self.status == "SEND_OK"


@attrs.frozen
class Received:
    """One record as the official client decoded it; body as uncompressed by the client."""

    topic: str
    queue_id: int
    queue_offset: int
    unique_key: str | None
    tags: str | None
    keys: str | None
    body_sha1: str
    body_length: int
    born_ms: int
    stored_ms: int
    received_ms: int
    reconsume_times: int
    properties: Mapping[str, str]
    returned: bool = False

    @property
    def is_retry(self) -> bool:
        """Whether a consumer had returned it; clients show such records under their old topic."""
        return self.reconsume_times > 0

    @property
    def place(self) -> tuple[str, bool, int, int]:
        """Where the record stands: the same place twice is a re-delivery by the client."""
        return (self.topic, self.is_retry, self.queue_id, self.queue_offset)


class Judge:
    """Runs the Java client of one version against a broker."""

    def __init__(self, broker: Broker, scratch: Path, version: str | None = None) -> None:
        """Take the broker's version of the client unless another is given."""
        self.broker = broker
        self.scratch = scratch
        self.version = version or broker.version
        scratch.mkdir(parents=True, exist_ok=True)

    def send(
        self, messages: Sequence[Outgoing], *, threads: int = 4, deadline_s: float = 180
    ) -> list[Sent]:
        """Send all messages, once each, and return what became of them in their order."""
        lines = self._call("send", (each.line() for each in messages), deadline_s, threads=threads)
        by_number = {each.number: each for each in messages}
        sent = [
            Sent(
                message=by_number[line["n"]],
                status=line["status"],
                sent_ms=line.get("sendTime", 0),
                acknowledged_ms=line.get("ackTime", 0),
                unique_key=line.get("uniqKey") or "",
                queue_id=line.get("queueId", -1),
                queue_offset=line.get("queueOffset", -1),
                recall_handle=line.get("recallHandle"),
                error=line.get("error"),
            )
            for line in lines
        ]
        return sorted(sent, key=lambda each: each.message.number)

    def recall(self, sent: Iterable[Sent], *, deadline_s: float = 120) -> set[str]:
        """Recall messages; return the unique keys for which the broker accepted it."""
        chosen = {each.message.number: each for each in sent}
        work = (
            {"n": number, "topic": each.message.topic, "recallHandle": each.recall_handle}
            for number, each in chosen.items()
        )
        lines = self._call("recall", work, deadline_s)
        return {chosen[line["n"]].unique_key for line in lines if line["recalled"]}

    def read(self, queues: Iterable[tuple[str, int]], *, deadline_s: float = 180) -> list[Received]:
        """Read whole (topic, queue id) queues past any consumer, also from a slave."""
        work = ({"topic": topic, "queueId": queue_id} for topic, queue_id in queues)
        broker = self.broker.address
        lines = self._call("read", work, deadline_s, broker=broker, input_as="queues")
        return [_received(line) for line in lines]

    def consume(
        self,
        topics: Iterable[str],
        group: str,
        *,
        expect: int | None = None,
        deadline_s: float = 120,
        settle_s: float = 1.0,
        start_at: str = "first",
        return_one_in: int = 0,
        hold_after: int | None = None,
    ) -> "Consumption":
        """Start a consumer in the background; it ends after `expect` messages or the deadline.

        `start_at` ("first" or "last") is where a group without a stored offset begins. One
        message in `return_one_in` is returned once, to be delivered again from %RETRY%group. Those
        behind the first `hold_after` stay in the consumer's hands.
        """
        options: dict[str, object] = {
            "group": group,
            "topics": ",".join(topics),
            "from": start_at,
            "returnOneIn": return_one_in,
            "settleMs": int(settle_s * 1000),
        }
        if expect is not None:
            options["expect"] = expect
        if hold_after is not None:
            options["holdAfter"] = hold_after
        return Consumption(self, options, deadline_s)

    def _call(
        self,
        command: str,
        work: Iterable[Mapping[str, Any]],
        deadline_s: float,
        input_as: str = "workload",
        **options: object,
    ) -> list[dict[str, Any]]:
        folder = self.new_folder(command)
        given = folder / "in.jsonl"
        with given.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in work)
        options = {**options, input_as: given}
        process = self.start(command, folder, deadline_s, options)
        code = processes.wait(process, deadline_s + _BOOT_S)
        if code != 0:
            raise JudgeError(f"{command} ended with {code}\n{processes.tail(folder / 'judge.out')}")
        return read_lines(folder / "out.jsonl")

    def start(
        self, command: str, folder: Path, deadline_s: float, options: Mapping[str, object]
    ) -> "subprocess.Popen[bytes]":
        """Start one command of the Java program; its output goes to `folder`."""
        every = {
            "namesrv": self.broker.name_server_address,
            "out": folder / "out.jsonl",
            "deadlineMs": int(deadline_s * 1000),
            **options,
        }
        quiet = folder / "logback.xml"
        quiet.write_text(_QUIET, encoding="utf-8")
        line = [
            "java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_OPENS,
            f"-Duser.home={folder}",
            f"-Dlogback.configurationFile={quiet}", "-Drocketmq.client.rebalance.waitInterval=1000",
            "-cp", f"{judge_classes(self.version)}:{jars(client_of(self.version))}/*",
            "Judge", command, *(f"{key}={value}" for key, value in every.items()),
        ]  # fmt: skip
        return processes.spawn(line, folder / "judge.out")

    def new_folder(self, command: str) -> Path:
        """Make a folder for one command's files."""
        folder = self.scratch / f"{command}-{sum(1 for _ in self.scratch.iterdir())}"
        folder.mkdir()
        return folder


class Consumption:
    """A consumer that runs beside the test. Leaving a `with` block ends it."""

    def __init__(self, judge: Judge, options: Mapping[str, object], deadline_s: float) -> None:
        """Start the consumer and return when it is connected."""
        self._folder = judge.new_folder("consume")
        self._deadline_s = deadline_s
        self._process = judge.start("consume", self._folder, deadline_s, options)
        started = self._folder / "out.jsonl.started"
        give_up = time.monotonic() + _BOOT_S
        while not started.exists():
            if self._process.poll() is not None or time.monotonic() > give_up:
                processes.kill(self._process)
                raise JudgeError(
                    f"the consumer did not start\n{processes.tail(self._folder / 'judge.out')}"
                )
            time.sleep(0.05)

    def wait(self) -> list[Received]:
        """Wait until the consumer has ended by itself; return every delivery in order."""
        code = processes.wait(self._process, self._deadline_s + _BOOT_S)
        if code != 0:
            raise JudgeError(
                f"the consumer ended with {code}\n{processes.tail(self._folder / 'judge.out')}"
            )
        return [_received(line) for line in read_lines(self._folder / "out.jsonl")]

    def so_far(self) -> list[Received]:
        """Return every delivery until now, in order."""
        whole = (self._folder / "out.jsonl").read_bytes().rpartition(b"\n")[0]
        return [_received(json.loads(line)) for line in whole.splitlines()]

    def keys_so_far(self) -> set[str]:
        """Return the unique keys of what has come until now."""
        return {str(each.unique_key) for each in self.so_far()}

    def stop(self) -> list[Received]:
        """Tell the consumer to end now, and return what it got."""
        (self._folder / "out.jsonl.stop").touch()
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        processes.kill(self._process)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def queues_of(store_root: Path) -> list[tuple[str, int]]:
    """List every (topic, queue id) that a store with file queues holds."""
    folders = (store_root / "consumequeue").glob("*/*")
    return sorted((each.parent.name, int(each.name)) for each in folders if each.name.isdigit())


def copy_store(source: Path, target: Path) -> Path:
    """Copy a stopped broker's store; holes in its files stay holes."""
    command = ["cp", "-a", "--sparse=always", f"{source}/.", str(target)]
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    subprocess.run(command, check=True, timeout=120)
    return target


def _received(line: Mapping[str, Any]) -> Received:
    return Received(
        topic=line["topic"],
        queue_id=line["queueId"],
        queue_offset=line["queueOffset"],
        unique_key=line["uniqKey"],
        tags=line["tags"],
        keys=line["keys"],
        body_sha1=line["bodySha1"],
        body_length=line["bodyLength"],
        born_ms=line["bornTimestamp"],
        stored_ms=line["storeTimestamp"],
        received_ms=line["receiveTime"],
        reconsume_times=line["reconsumeTimes"],
        properties=line["properties"],
        returned=line.get("returned", False),
    )
