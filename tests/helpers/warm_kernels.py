# SPDX-License-Identifier: Apache-2.0
"""Compile all kernels into the cache: `python -m tests.helpers.warm_kernels`.

A kernel is compiled when its module is imported, because its signature is explicit.
"""

from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("message_store", "legacy_levels", "timer_wheel", "migrate", "compare")

if __name__ == "__main__":
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "kernel_cache import" in path.read_text(encoding="utf-8"):
                import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
