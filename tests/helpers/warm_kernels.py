# SPDX-License-Identifier: Apache-2.0
"""Compile all kernels into the cache: `python -m tests.helpers.warm_kernels`.

A kernel is compiled when its module is imported, because its signature is explicit. Two processes
do it, from both ends of the list: what one has compiled the other finds in the cache.
"""

import sys
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "message_store", "legacy_levels", "time_index", "timer_wheel", "migrate", "compare",
)  # fmt: skip


def modules() -> list[str]:
    """The modules that have kernels."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in paths
        if "kernels.cache import" in path.read_text(encoding="utf-8")
    ]


def warm(names: list[str]) -> None:
    """Import modules."""
    for name in names:
        import_module(name)


if __name__ == "__main__":
    names = modules()
    other = get_context("spawn").Process(target=warm, args=(names[::-1],))
    other.start()
    warm(names)
    other.join()
    sys.exit(other.exitcode)
