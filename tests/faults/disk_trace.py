# SPDX-License-Identifier: Apache-2.0
"""The recorded disk of a process that is looked at from outside: ``strace`` writes its system calls
down, whoever makes them, and they become the same events.

A write counts from when it came back, and a sync takes along what had come back before it was
called. A call that changes files in a way that is not known here is an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from tests.faults.traced_worker import NOTES
from tests.simulation.simulated_disk import Event, Name, Note, Resize, Sync, SyncNames, Write

ROOT = Path(__file__).resolve().parent.parent.parent
_LONGEST_S = 120

_OPENING = {"openat": 1, "open": 0}
_SYNCING = ("fsync", "fdatasync")
_MOVING = {"rename": (0, 1), "renameat": (1, 3), "renameat2": (1, 3)}
_REMOVING = {"unlink": 0, "rmdir": 0, "unlinkat": 1}
_MAKING = {"mkdir": 0, "mkdirat": 1}
_CHANGING = ("write", "pwrite64", "ftruncate", "fallocate", "lseek")
_UNKNOWN = (
    *("creat", "writev", "pwritev", "pwritev2", "truncate", "link", "linkat", "symlink"),
    *("symlinkat", "copy_file_range", "sendfile", "splice", "msync", "io_uring_setup"),
)
_TRACED = (
    *(*_OPENING, *_SYNCING, *_MOVING, *_REMOVING, *_MAKING, *_CHANGING, *_UNKNOWN),
    "mmap",
)

_WHOLE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\w+)(?:<.*>.*| .*)?")
_BEGUN = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")
_FILE = re.compile(r"(\d+)<((?:\\x[0-9a-f]{2})*)>(?!\(deleted\))")
_DIRECTORY = re.compile(r"\w+<((?:\\x[0-9a-f]{2})*)>")

_OWN_LOG = re.compile(r"delaywheel/hierarchy/index/LOG(\.old\.\d+)?")
"""What RocksDB writes for people."""


def is_installed() -> bool:
    """Whether there is a strace."""
    return shutil.which("strace") is not None


def why_not() -> str | None:
    """Why no process can be looked at here; None where it can."""
    if not is_installed():
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"strace cannot trace here: {tried.stderr.strip()}"


def traced(folder: Path, seed: int, steps: Sequence[int]) -> list[Event]:
    """What a worker of ``traced_worker`` changes, with its notes in between."""
    folder.mkdir()
    told = folder.parent / f"{folder.name}.strace"
    command = ["strace", "-f", "-y", "-xx", "-s", str(1 << 24), "-e", "signal=none"]
    command += ["--seccomp-bpf", "-e", f"trace={','.join(_TRACED)}", "-o", str(told)]
    command += [sys.executable, "-m", "tests.faults.traced_worker", str(folder), str(seed)]
    subprocess.run([*command, *map(str, steps)], cwd=ROOT, check=True, timeout=_LONGEST_S)
    disk = TracedDisk(folder / "store", folder / NOTES)
    for call in calls(told.read_text().splitlines()):
        disk.take_in(call)
    told.unlink()
    shutil.rmtree(folder)
    return disk.events


@attrs.frozen
class Call:
    """A system call that came back, and the lines on which it was made and did."""

    name: str
    given: list[str]
    result: int
    begun: int
    ended: int


def calls(lines: Sequence[str]) -> Iterator[Call]:
    """The calls that strace tells of, in the order in which they came back."""
    unfinished: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(lines):
        begun = number
        if found := _BEGUN.fullmatch(line):
            unfinished[found[1]] = f"{found[1]} {found[2]}({found[3]}", number
            continue
        if found := _RESUMED.fullmatch(line):
            head, begun = unfinished.pop(found[1])
            line = head + found[3]
        if whole := _WHOLE.fullmatch(line):
            # Texts and paths are told in hexadecimal: no comma is part of one.
            yield Call(whole[2], whole[3].split(", "), int(whole[4], 0), begun, number)


class TracedDisk:
    """The events below one directory, ``notes`` being a file of them beside it."""

    def __init__(self, root: Path, notes: Path) -> None:
        self.events: list[Event] = []
        self._root, self._notes = str(root), str(notes)
        self._names: dict[str, int | None] = {}
        self._lengths: dict[int, int] = {}
        self._places: dict[int, int] = {}
        self._ended: list[int] = []

    def take_in(self, call: Call) -> None:
        """Make what it must of one call."""
        if call.result < 0:
            return
        count = len(self.events)
        if call.name in _OPENING:
            self._open(call, _OPENING[call.name])
        elif call.name in _SYNCING:
            self._sync(call)
        elif call.name in _MOVING:
            source, target = (self._named(call, at) for at in _MOVING[call.name])
            self._move(source, target)
        elif call.name in _REMOVING:
            self._remove(self._named(call, _REMOVING[call.name]))
        elif call.name in _MAKING:
            self._make(self._named(call, _MAKING[call.name]))
        elif call.name == "mmap":
            self._map(call)
        elif call.name in _CHANGING:
            self._change(call)
        elif any(self._root in _text(part) for part in call.given):
            raise AssertionError(f"a call that is not known here: {call}")
        self._ended += [call.ended] * (len(self.events) - count)

    def _named(self, call: Call, at: int) -> str | None:
        """The name below the root in a call that is given it here, and before it a directory."""
        path, base = _bytes(call.given[at]), _DIRECTORY.match(call.given[at - 1]) if at else None
        if base is not None:
            path = os.path.join(bytes.fromhex(_digits(base[1])), path)
        return self._below(path)

    def _below(self, path: bytes) -> str | None:
        text = os.path.normpath(path.decode())
        if text == self._root:
            return "."
        return os.path.relpath(text, self._root) if text.startswith(self._root + "/") else None

    def _open(self, call: Call, path_at: int) -> None:
        name, flags = self._named(call, path_at), call.given[path_at + 1]
        self._places[call.result] = 0
        if name is None or name == ".":
            return
        file = self._names.setdefault(name, len(self._lengths))
        if file is None:  # a directory
            return
        if file not in self._lengths:
            assert "O_CREAT" in flags, call
            self._lengths[file] = 0
            self._add_name(Name(name, file))
        elif "O_TRUNC" in flags and self._lengths[file]:
            self._lengths[file] = 0
            self.events.append(Resize(file, 0))
        if "O_APPEND" in flags:
            self._places[call.result] = self._lengths[file]

    def _add_name(self, event: Name) -> None:
        if not _OWN_LOG.fullmatch(event.path):
            self.events.append(event)

    def _change(self, call: Call) -> None:
        handle, path = _handle(call.given[0])
        name = self._below(path) if path.startswith(b"/") else None
        if call.name == "lseek":
            self._places[handle] = call.result
        elif call.name == "write":
            data, begin = _bytes(call.given[1])[: call.result], self._places.get(handle, 0)
            self._places[handle] = begin + call.result
            if path.decode() == self._notes:
                self.events.append(Note(json.loads(data)))
            self._write(name, begin, data)
        elif call.name == "pwrite64":
            self._write(name, int(call.given[3]), _bytes(call.given[1])[: call.result])
        elif name is not None and (call.name == "ftruncate" or call.given[1] == "0"):
            file, size_bytes = self._names[name], sum(map(int, call.given[1:]))
            assert file is not None
            self._lengths[file] = size_bytes
            self.events.append(Resize(file, size_bytes))

    def _write(self, name: str | None, begin: int, data: bytes) -> None:
        if name is None or _OWN_LOG.fullmatch(name):
            return
        file = self._names[name]
        assert file is not None
        self._lengths[file] = max(self._lengths[file], begin + len(data))
        self.events.append(Write(file, begin, data))

    def _sync(self, call: Call) -> None:
        name = self._below(_handle(call.given[0])[1])
        if name is None or _OWN_LOG.fullmatch(name):
            return
        until = bisect_left(self._ended, call.begun)
        file = self._names.get(name)
        self.events.append(SyncNames(name, until) if file is None else Sync(file, until))

    def _move(self, source: str | None, target: str | None) -> None:
        if source is None or target is None:
            return
        self._names[target] = self._names.pop(source)
        self._add_name(Name(target, self._names[target], moved_from=source))

    def _remove(self, name: str | None) -> None:
        if name is not None:
            self._names.pop(name, None)
            self._add_name(Name(name, None))

    def _make(self, name: str | None) -> None:
        if name is not None:
            self._names[name] = None
            self.events.append(Name(name, None, is_directory=True))

    def _map(self, call: Call) -> None:
        is_shared = "MAP_SHARED" in call.given[3] and "PROT_WRITE" in call.given[2]
        if is_shared and self._below(_handle(call.given[4])[1]) is not None:
            raise AssertionError(f"written through memory, which nobody sees: {call}")


def _bytes(quoted: str) -> bytes:
    assert quoted.startswith('"'), quoted
    return bytes.fromhex(_digits(quoted.strip('"')))


def _handle(given: str) -> tuple[int, bytes]:
    """The number of a handle, and what it is open at; of none, or one without a path, nothing."""
    found = _FILE.match(given)
    return (-1, b"/") if found is None else (int(found[1]), bytes.fromhex(_digits(found[2])))


def _digits(escaped: str) -> str:
    return escaped.replace("\\x", "")


def _text(given: str) -> str:
    return bytes.fromhex("".join(re.findall(r"\\x([0-9a-f]{2})", given))).decode("latin-1")
