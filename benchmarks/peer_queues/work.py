# SPDX-License-Identifier: Apache-2.0
"""What every queue is asked to do: put, drain, deliver a steady load, and go on after a kill.

A body of 1,024 bytes begins with the message's number and the time at which it is due.
"""

import importlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import descendants, process_cpu_s
from benchmarks.peer_queues.interface import PeerQueue

BODY_BYTES = 1_024
_HOUR_MS = 3_600_000
_WARM_PUTS = 3
_WARM_S = 5.0
_LAST_PUTS_S = 0.2
_DELAYS_MS = (1_000, 5_000)
"""Delays of a steady load: levels have them too."""


@dataclass(frozen=True)
class Task:
    """One piece of work.

    ``server`` is the process of the queue's server. ``count`` bounds the messages, ``seconds`` the
    time of each part. ``rate`` is messages a second of a steady load. ``due_ms`` is when all are
    due, where that is known before. ``log`` is a file that gets a line for each message handled,
    and ``work_s`` how long handling one takes. A consumer waits ``least_s`` for messages that are
    delivered again. ``batch`` is put or taken at a time. ``after_ms`` is how long after its due
    time a message may be delivered by promise.
    """

    name: str
    driver: str
    directory: str
    argument: str = ""
    is_power_safe: bool = False
    batch: int = 1
    count: int = 0
    seconds: float = 0.0
    rate: int = 0
    due_ms: int = 0
    after_ms: int = 0
    server: int = 0
    log: str = ""
    work_s: float = 0.0
    least_s: float = 0.0


def run(task: Task) -> dict[str, Any]:
    """Do it; the figures of it."""
    done: dict[str, Any] = globals()[f"_{task.name}"](task)
    return done


def _serve(task: Task) -> dict[str, Any]:
    command = importlib.import_module(task.driver).serve(
        Path(task.directory), is_power_safe=task.is_power_safe
    )
    os.execv(command[0], command)


def _opened(task: Task) -> PeerQueue:
    module = importlib.import_module(task.driver)
    more = (task.argument,) if task.argument else ()
    opened: PeerQueue = module.open_queue(Path(task.directory), task.is_power_safe, *more)
    return opened


def _cpu_s(task: Task) -> float:
    servers = [task.server, *descendants(task.server)] if task.server else []
    return process_cpu_s() + sum(map(process_cpu_s, servers))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _bodies(first: int, count: int, due_ms: int) -> list[bytes]:
    return [
        f"{number:012d} {due_ms:013d} ".encode().ljust(BODY_BYTES, b"x")
        for number in range(first, first + count)
    ]


def _number(body: bytes) -> int:
    return int(body[:12])


def _due_ms(body: bytes) -> int:
    return int(body[13:26])


# --- as fast as it goes ---------------------------------------------------------------------------


def _put(task: Task) -> dict[str, Any]:
    """Put what is due in an hour, for so many seconds; the first few are not timed."""
    _opened(task).close()  # what an open one has beside its files is gone at the end as well
    empty_bytes = _disk_bytes(task)
    queue, due_ms = _opened(task), _now_ms() + _HOUR_MS
    for number in range(_WARM_PUTS):
        queue.put(_bodies(number * task.batch, task.batch, due_ms), due_ms)
    figures = _put_for(queue, task, due_ms, _WARM_PUTS * task.batch)
    queue.close()
    return figures | {
        "stored": figures["messages"] + _WARM_PUTS * task.batch,
        "disk bytes": _disk_bytes(task) - empty_bytes,
    }


def _disk_bytes(task: Task) -> int:
    """Blocks of all files, but for PostgreSQL's log, whose files are used again."""
    return sum(
        file.stat().st_blocks * 512
        for file in Path(task.directory).rglob("*")
        if file.is_file() and "pg_wal" not in file.parts
    )


def _put_for(queue: PeerQueue, task: Task, due_ms: int, first: int = 0) -> dict[str, Any]:
    done, cpu_s, started_s = 0, _cpu_s(task), time.perf_counter()
    while (took_s := time.perf_counter() - started_s) < task.seconds and done < task.count:
        queue.put(_bodies(first + done, task.batch, due_ms), due_ms)
        done += task.batch
    return {"messages": done, "s": took_s, "cpu s": _cpu_s(task) - cpu_s}


def _drain(task: Task) -> dict[str, Any]:
    """Consume what is due all at once; the time is from the first look to the last acknowledged.
    One message before is not timed.
    """
    queue = _opened(task)
    warm: list[bytes] = []
    queue.put(_bodies(0, 1, _now_ms()), _now_ms())
    until_s = time.perf_counter() + _WARM_S
    queue.consume(warm.append, lambda: bool(warm) or time.perf_counter() > until_s, task.batch)
    due_ms = _now_ms() + int(1_000 * task.seconds) + 1_000
    put = _put_for(queue, task, due_ms)["messages"]
    time.sleep(max(0.0, (due_ms + task.after_ms - _now_ms()) / 1_000))
    handled = 0

    def handle(_body: bytes) -> None:
        nonlocal handled
        handled += 1

    ended_s, cpu_s, started_s = 0.0, _cpu_s(task), time.perf_counter()

    def stop() -> bool:
        nonlocal ended_s
        now_s = time.perf_counter()
        if not ended_s and (handled >= put or now_s - started_s > 2 * task.seconds):
            ended_s = now_s
        return bool(ended_s)

    queue.consume(handle, stop, task.batch)
    figures = {"messages": handled, "s": ended_s - started_s, "cpu s": _cpu_s(task) - cpu_s}
    queue.close()
    return figures | {"put": put}


# --- a steady load --------------------------------------------------------------------------------


def _steady(task: Task) -> dict[str, Any]:
    """Both sides in one process, for a store that belongs to one."""
    queue, sent = _opened(task), []
    producer = threading.Thread(target=lambda: sent.append(_send(queue, task)))
    cpu_s = _cpu_s(task)
    producer.start()
    figures = _receive(queue, task)
    producer.join()
    figures |= sent[0]
    queue.close()
    return figures | {"cpu s": _cpu_s(task) - cpu_s}


def _produce(task: Task) -> dict[str, Any]:
    queue, cpu_s = _opened(task), process_cpu_s()
    figures = _send(queue, task)
    queue.close()
    return figures | {"cpu s": process_cpu_s() - cpu_s}


def _consume(task: Task) -> dict[str, Any]:
    queue, cpu_s = _opened(task), _cpu_s(task)
    print("opened", flush=True)
    figures = _receive(queue, task) | {"cpu s": _cpu_s(task) - cpu_s}
    queue.close()
    return figures


def _send(queue: PeerQueue, task: Task) -> dict[str, Any]:
    """Put one by one at a rate, until all should have been put. Behind its time it hurries. Each
    number is said when its put has returned, where a log is asked for.
    """
    done, started_s = 0, time.perf_counter()
    most_s = task.count / task.rate + _LAST_PUTS_S
    while done < task.count and (took_s := time.perf_counter() - started_s) < most_s:
        for number in range(done, min(task.count, int(took_s * task.rate) + 1)):
            due_ms = task.due_ms or _now_ms() + _DELAYS_MS[number % len(_DELAYS_MS)]
            queue.put(_bodies(number, 1, due_ms), due_ms)
            if task.log:
                print(number, flush=True)
            done += 1
            if time.perf_counter() - started_s > most_s:
                break
        time.sleep(0.0005)
    return {"sent": done, "sent for s": time.perf_counter() - started_s}


def _receive(queue: PeerQueue, task: Task) -> dict[str, Any]:
    """Handle until the first ``count`` messages have come, or for ``seconds``; a log tells of those
    that came to another process before.
    """
    late_ms: list[int] = []
    log = Path(task.log) if task.log else None
    seen = {int(line) for line in log.read_bytes().split()} if log and log.is_file() else set()
    seen = {number for number in seen if number < task.count}

    def handle(body: bytes) -> None:
        late_ms.append(_now_ms() - _due_ms(body))
        if task.work_s:
            time.sleep(task.work_s)
        if log is not None:
            with log.open("ab") as file:
                file.write(b"%d\n" % _number(body))
        if _number(body) < task.count:
            seen.add(_number(body))

    started_s = time.perf_counter()

    def stop() -> bool:
        took_s = time.perf_counter() - started_s
        return took_s > task.seconds or (took_s > task.least_s and len(seen) >= task.count)

    queue.consume(handle, stop, task.batch)
    return {
        "handled": len(late_ms),
        "different": len(seen),
        "early": sum(each < 0 for each in late_ms),
        "late ms": _percentiles(sorted(late_ms)),
    }


def _percentiles(late_ms: Sequence[int]) -> dict[str, int]:
    if not late_ms:
        return {}
    last = len(late_ms) - 1
    return {f"{each:g}": late_ms[round(last * each / 100)] for each in (50, 99, 99.9, 100)}
