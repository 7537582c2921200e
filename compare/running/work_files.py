# SPDX-License-Identifier: Apache-2.0
"""The files of a race besides the stores: its directory, columns handed from process to process,
what the system says about a process.

No file here is part of a store, and all are removed at the end of the race.
"""

import fcntl
import json
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compare.workloads.workload import Workload
from message_store.base.errors import TargetError, disk_errors

WORKLOAD_FILE = "workload.npz"
_RACE_PREFIX = "delaywheel-race-"
_BLOCK_UNIT_BYTES = 512
_KIB = 1_024


@contextmanager
def race_directory(above: Path | None, keep: Path | None) -> Iterator[Path]:
    """Where a race works: ``keep`` itself, which must be new or empty and stays; or else a
    directory below ``above`` (unless given where temporary files go) that is removed at the end.

    Raises TargetError when the disk refuses it, or it is not empty.
    """
    with disk_errors(TargetError, keep or above, "written"):
        made = keep or Path(tempfile.mkdtemp(prefix=_RACE_PREFIX, dir=above))
        made.mkdir(parents=True, exist_ok=True)
        is_empty = not any(made.iterdir())
        held = _held(made) if keep is None else None
    if not is_empty:
        raise TargetError(f"{keep}: is not empty")
    try:
        yield made
    finally:
        if keep is None:
            remove(made)
        if held is not None:
            os.close(held)


def left_behind(above: Path | None) -> list[Path]:
    """Directories of races that were killed, below ``above`` (unless given where temporary files
    go): nobody works there any more.
    """
    abandoned = []
    with suppress(OSError):
        for path in sorted((above or Path(tempfile.gettempdir())).glob(f"{_RACE_PREFIX}*")):
            with suppress(OSError):
                held = _held(path)
                if held is not None:
                    abandoned.append(path)
                    os.close(held)
    return abandoned


def _held(directory: Path) -> int | None:
    """The directory, locked until it is closed; None where a race holds it. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def remove(path: Path) -> None:
    """Take a file away, or a directory with all that is in it."""
    with suppress(OSError):  # it is no file, or nothing is there
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def copy_store(source: Path, target: Path) -> None:
    """Copy a store, its holes as holes, but for what says that somebody uses it.

    Raises TargetError.
    """
    command = ["cp", "--recursive", "--sparse=always", "--no-target-directory"]
    run = subprocess.run(
        [*command, "--", str(source), str(target)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise TargetError(f"{source}: cannot be copied to {target}: {run.stderr.strip()[:200]}")


def processor_name() -> str:
    """What the system calls its processor; nothing where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def write_columns(path: Path, facts: Mapping[str, Any], **columns: NDArray[Any]) -> None:
    """Columns, uncompressed, as ``numpy.savez`` writes them; ``facts`` as JSON in one named so.

    Raises TargetError.
    """
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with disk_errors(TargetError, path, "written"), path.open("wb") as file:
        np.savez(file, allow_pickle=False, facts=text, **columns)


def read_columns(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Facts and columns, as ``write_columns`` wrote them."""
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    return json.loads(columns.pop("facts").tobytes()), columns


def write_workload(path: Path, workload: Workload) -> None:
    """A workload for another process: its int64 columns by their names, ``block`` (uint8), and as
    facts ``name``, ``start_ms``, ``topics``, ``seed``, ``rate_per_second`` and ``source``.
    """
    values = {field.name: getattr(workload, field.name) for field in attrs.fields(Workload)}
    columns = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    facts = {name: value for name, value in values.items() if name not in columns}
    write_columns(path, facts, block=workload.block(), **columns)


def read_workload(path: Path) -> Workload:
    """The workload that ``write_workload`` put there."""
    facts, columns = read_columns(path)
    del columns["block"]  # derived from the seed
    fields: dict[str, Any] = {**facts, **columns, "topics": tuple(facts["topics"])}
    return Workload(**fields)


# --- what the system says -------------------------------------------------------------------------


def disk_bytes(path: Path) -> int:
    """What a directory takes on the disk."""
    total = 0
    with suppress(OSError):  # files come and go
        for file in path.rglob("*"):
            with suppress(OSError):
                total += file.lstat().st_blocks * _BLOCK_UNIT_BYTES
    return total


@attrs.frozen
class ProcessMemory:
    """``private_bytes`` is shared with no file (RssAnon); ``peak_bytes`` the most that was ever
    resident, file pages included (VmHWM).
    """

    private_bytes: int
    peak_bytes: int


def process_memory(process: int | str = "self") -> ProcessMemory:
    """The memory of a process, zeros where it has ended or the system keeps no such account."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ProcessMemory(0, 0)
    status = {name: rest for name, _, rest in (line.partition(":") for line in text.splitlines())}
    private, peak = (
        int(status.get(name, "0 kB").split()[0]) * _KIB for name in ("RssAnon", "VmHWM")
    )
    return ProcessMemory(private, peak)


def read_from_disk_bytes() -> int:
    """What this process has had read from disks so far, also for mapped files; what was in the page
    cache does not count. 0 where the system keeps no such account.
    """
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), 0)


def forget_pages(directory: Path) -> None:
    """Bring these files to the disk and let the system drop what it holds of them in memory, as
    when the machine was started again. What is mapped into some process stays. Raises TargetError.
    """
    for path in directory.rglob("*"):
        if path.is_file():
            with disk_errors(TargetError, path, "synced"):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)  # what is not yet on the disk would stay
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


def prewarm(wanted_bytes: int = 5 << 30) -> None:
    """Touch memory and give it back: on a virtual machine a page that the host must still provide
    costs three to five times as much as one that was used before. Some hosts reclaim what is free
    within a second, and to touch a GiB costs one: no more than is going to be used.
    """
    pages = min(wanted_bytes // mmap.PAGESIZE, os.sysconf("SC_AVPHYS_PAGES") * 9 // 10)
    with mmap.mmap(-1, max(1, pages) * mmap.PAGESIZE) as block:
        for place in range(0, len(block), mmap.PAGESIZE):
            block[place] = 1


def free_bytes(directory: Path) -> int:
    """What the disk of a directory has room for."""
    return shutil.disk_usage(directory).free


def make_directory(path: Path) -> Path:
    """A directory that is there afterwards. Raises TargetError."""
    with disk_errors(TargetError, path, "made"):
        path.mkdir(parents=True, exist_ok=True)
    return path


_RECORD_BESIDES_BODY_BYTES = 350
_BESIDES_BYTES = 20 + 20 + 53
_STORE_BYTES = 96 << 20
"""The slots of a wheel that are all in use, an index and its log, RocketMQ's own logs."""


def store_bytes(workload: Workload) -> int:
    """A store given these messages, each as pending and as delivered, and what belongs to it."""
    sizes = workload.body_bytes
    each = 2 * (int(sizes.sum()) + len(sizes) * _RECORD_BESIDES_BODY_BYTES)
    return each + len(sizes) * _BESIDES_BYTES + _STORE_BYTES


def copied_store_bytes(store: Path) -> int:
    """A copy of this store that then delivers whatever waits in it."""
    return 2 * disk_bytes(store) + _STORE_BYTES
