# SPDX-License-Identifier: Apache-2.0
"""A stock RocketMQ name server and broker on free loopback ports, over a given store root."""

import json
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.helpers.ports import free_ports
from tests.interop import processes
from tests.interop.jars import jars, rolling_broker

READY_S: Final = 180.0
STOP_S: Final = 90.0

LOGS: Final = "storePathCommitLog"

# A target's own settings, as the conversion leaves them.
FRAGMENT: Final = Path("delaywheel") / "broker.conf"

# 4.9's shutdown hook unmaps files by reflection; without these it dies and leaves `abort`.
_OPENED: Final = "java.nio sun.nio.ch java.lang java.util jdk.internal.ref jdk.internal.misc"
_OPENS_FOR_4: Final = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED.split()),
)
# They live for seconds: the longest part is to compile themselves.
_LIGHT: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_SMALL_STORE: Final[Mapping[str, object]] = {
    "brokerClusterName": "judge",
    "brokerName": "judge-a",
    "brokerId": 0,
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    # The default deletes old commit log files on a machine whose disk is three quarters full.
    "diskMaxUsedSpaceRatio": 99,
    # The default index file is 420 MB, sparse.
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20000,
    "maxTransferCountOnMessageInMemory": 256,
    "maxTransferCountOnMessageInDisk": 256,
    "traceTopicEnable": "false",
    # A broker that waited for a core refuses what has queued up meanwhile: on two busy cores that
    # says nothing about its store.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": 60_000,
    # The service that writes these down spins for the first interval, which is ten seconds.
    "transactionMetricFlushInterval": 200,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 40_000,
}

_LOGBACK: Final = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{log}</file>
    <encoder><pattern>%d %p [%t] %logger{{0}} - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""


class BrokerError(Exception):
    """A broker that did not start, or did not stop as it should."""


class Broker:
    """One broker of one version over one store root; start and stop it as often as needed.

    Settings are the harness's own, then those of the fragment a converted store carries, then
    `settings`. Leaving a `with` block stops the broker cleanly, or kills it if a test failed.
    """

    def __init__(
        self,
        version: str,
        store_root: Path,
        scratch: Path,
        *,
        settings: Mapping[str, object] | None = None,
        topics: Mapping[str, int] | None = None,
        rolls_every_s: int | None = None,
    ) -> None:
        """Prepare a broker; `topics` maps names to queue counts for a store that has none yet.

        With `rolls_every_s` its RocksDB timeline rolls so often, and not once an hour.
        """
        self.version = version
        self.store_root = store_root
        self.scratch = scratch
        self.address = ""
        self.name_server_address = ""
        self._given = dict(settings or {})
        self._topics = dict(topics or {})
        self._rolls_every_s = rolls_every_s
        self._name_server: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    def left_abort(self) -> bool:
        """Say whether the store has the mark of being open, or of a crash."""
        return (self.store_root / "abort").exists()

    def start(self) -> Self:
        """Start the name server and the broker, and return when clients can use both."""
        if self._broker is not None:
            raise BrokerError("this broker is already running")
        self._prepare()
        # A port can be taken between the look and the bind: one more try, on others.
        for last_try in (False, True):
            self._launch()
            try:
                self._wait_until_ready()
            except BrokerError:
                refused = "Address already in use" in self.log_tail(400)
                self._kill_both()
                if last_try or not refused:
                    raise
            else:
                break
        return self

    def stop(self) -> None:
        """Stop cleanly, as an operator does.

        Raises:
            BrokerError: it did not end in time, or left the mark of a crash.
        """
        if self._broker is None:
            return
        by_itself = processes.terminate(self._broker, STOP_S)
        self._broker = None
        self._kill_both()
        if not by_itself:
            raise BrokerError(f"{self.version} did not stop within {STOP_S:.0f} s")
        if self.left_abort():
            raise BrokerError(f"{self.version} was stopped but left `abort`\n{self.log_tail()}")

    def kill(self) -> None:
        """Kill the broker at once, as a crash of the machine's process does."""
        self._kill_both()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of what the broker said: its output and its own log."""
        logs = [self.scratch / "broker.out", *sorted(self.scratch.rglob("broker.log"))]
        parts = [
            f"--- {self.version} {log.name}\n{processes.tail(log, lines)}"
            for log in logs
            if log.is_file()
        ]
        return "\n".join(parts)

    def settings(self) -> dict[str, object]:
        """Return what this store is opened with, but for the ports."""
        fragment = read_settings(self.store_root / FRAGMENT)
        return {**_SMALL_STORE, **fragment, **self._given}

    def _prepare(self) -> None:
        conf = self.scratch / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for name in ("broker", "namesrv"):
            log = self.scratch / f"{name}.log"
            (conf / f"logback_{name}.xml").write_text(_LOGBACK.format(log=log), encoding="utf-8")
        topics = self.store_root / "config" / "topics.json"
        if self._topics and not topics.exists():
            topics.parent.mkdir(parents=True, exist_ok=True)
            table = {
                name: {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues,
                       "perm": 6}
                for name, queues in self._topics.items()
            }  # fmt: skip
            topics.write_text(json.dumps({"topicConfigTable": table}), encoding="utf-8")

    def _launch(self) -> None:
        port = free_ports()[2]  # with those that a broker (-2 … +2), a name server (+5) and
        # a proxy (+6, +7) take
        self.address = f"127.0.0.1:{port}"
        self.name_server_address = f"127.0.0.1:{port + 5}"
        name_server: dict[str, object] = {"listenPort": port + 5}
        broker = {
            **self.settings(),
            "namesrvAddr": self.name_server_address,
            "listenPort": port,
            "haListenPort": port + 2,
            "storePathRootDir": self.store_root,
            # That of a fragment lies in the target, and this may be a copy of it.
            LOGS: self._given.get(LOGS, self.store_root / "commitlog"),
        }
        if not self.version.startswith("4."):
            name_server["bindAddress"] = broker["bindAddress"] = "127.0.0.1"
        self._name_server = self._java("namesrv", "namesrv.NamesrvStartup", name_server, "-Xmx256m")
        self._broker = self._java("broker", "broker.BrokerStartup", broker, "-Xmx1g")

    def _java(
        self, name: str, main: str, settings: Mapping[str, object], heap: str
    ) -> "subprocess.Popen[bytes]":
        file = self.scratch / f"{name}.conf"
        lines = [f"{key}={value}\n" for key, value in settings.items()]
        file.write_text("".join(lines), encoding="utf-8")
        opens = _OPENS_FOR_4 if self.version.startswith("4.") else ()
        program = self.program(name, main, file)
        command = ["java", heap, *_LIGHT, *opens, f"-Duser.home={self.scratch}", "-cp", *program]
        environment = {"ROCKETMQ_HOME": str(self.scratch)}
        return processes.spawn(command, self.scratch / f"{name}.out", environment)

    def program(self, name: str, main: str, file: Path) -> list[str]:
        """Return class path, class and arguments of the `namesrv` or the `broker`."""
        library = f"{jars(self.version)}/*"
        if name == "broker" and self._rolls_every_s is not None:
            both = f"{library}:{rolling_broker(self.version)}"
            return [both, "RollingBroker", str(self._rolls_every_s), "-c", str(file)]
        return [library, f"org.apache.rocketmq.{main}", "-c", str(file)]

    def _wait_until_ready(self) -> None:
        assert self._broker is not None
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._broker.poll() is not None:
                code = self._broker.returncode
                raise BrokerError(f"{self.version} ended with {code}\n{self.log_tail()}")
            if self.is_ready():
                return
            time.sleep(0.2)
        raise BrokerError(f"{self.version} not ready after {READY_S:.0f} s\n{self.log_tail()}")

    def is_ready(self) -> bool:
        """Say whether clients can use both."""
        return answers(self.address) and _is_known(self.name_server_address, self.address)

    def _kill_both(self) -> None:
        for process in (self._broker, self._name_server):
            if process is not None:
                processes.kill(process)
        self._broker = self._name_server = None


def read_settings(file: Path) -> dict[str, object]:
    """Read key=value lines as a broker does; a file that is not there has none."""
    if not file.is_file():
        return {}
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _equals, value in pairs}


def answers(address: str) -> bool:
    """Say whether somebody listens there."""
    host, _colon, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _is_known(name_server: str, broker: str) -> bool:
    """Whether the name server lists that broker (request 106, the cluster's members)."""
    header = json.dumps({"code": 106, "language": "JAVA", "version": 0, "opaque": 1, "flag": 0,
                         "serializeTypeCurrentRPC": "JSON"}).encode()  # fmt: skip
    frame = struct.pack(">ii", 4 + len(header), len(header)) + header
    host, _colon, port = name_server.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            connection.sendall(frame)
            (length,) = struct.unpack(">i", _exactly(connection, 4))
            return broker.encode() in _exactly(connection, length)
    except OSError:
        return False


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise ConnectionError("closed in the middle of an answer")
        data += more
    return data
