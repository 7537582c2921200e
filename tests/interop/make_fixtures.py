# SPDX-License-Identifier: Apache-2.0
"""Makes the stores of tests/fixtures afresh, from real brokers; a script, see its --help."""

import argparse
import json
import logging
import lzma
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Run as a script, the repository's root is not on the path.
ROOT: Final = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.interop.jars import missing_tools  # noqa: E402
from tests.interop.store_maker import RealStore, StorePlan, make_store  # noqa: E402

_DEFAULT_SIZES: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}
# Everything due in more than a minute rolls, which takes a stock broker two days.
_WHEEL: Final[Mapping[str, object]] = {
    "mappedFileSizeTimerLog": 102_400,
    "timerRollWindowSlot": 60,
    "recallMessageEnable": "true",
}
# The timeline's database reaches the disk every five minutes and at a clean stop, not at a kill.
_TIMELINE: Final[Mapping[str, object]] = {
    "mappedFileSizeTimerLog": 102_400,
    "timerRocksDBEnable": "true",
    "recallMessageEnable": "true",
}
# 5.5 starts with both kinds of queues only if those of LMQ are in RocksDB.
_COMBINED: Final[Mapping[str, object]] = {
    "rocksdbCQDoubleWriteEnable": "true",
    "combineCQUseRocksdbForLmq": "true",
}

PLANS: Final = {
    plan.name: plan
    for plan in (
        StorePlan("levels-4.9.7-clean", "4.9.7", seed=1, messages=6000),
        StorePlan("levels-4.9.7-crash", "4.9.7", seed=2, messages=6000, killed=True),
        StorePlan("levels-5.5.0-clean", "5.5.0", seed=3, messages=6000),
        StorePlan(
            "wheel-5.5.0-clean",
            "5.5.0",
            seed=4,
            messages=2500,
            timers=True,
            settings=_WHEEL,
            linger_s=150,
        ),
        StorePlan(
            "timeline-5.4.0-clean",
            "5.4.0",
            seed=8,
            messages=300,
            timers=True,
            settings=_TIMELINE,
            linger_s=60,
            rolls_every_s=20,
        ),
        StorePlan(
            "timeline-5.4.0-crash",
            "5.4.0",
            seed=9,
            messages=300,
            timers=True,
            settings=_TIMELINE,
            linger_s=400,
            killed=True,
            rolls_every_s=100,
        ),
        StorePlan(
            "timeline-5.5.0-clean",
            "5.5.0",
            seed=6,
            messages=300,
            timers=True,
            settings=_TIMELINE,
            linger_s=60,
        ),
        StorePlan(
            "timeline-5.5.0-crash",
            "5.5.0",
            seed=7,
            messages=300,
            timers=True,
            settings=_TIMELINE,
            linger_s=400,
            killed=True,
        ),
        StorePlan(
            "levels-4.9.7-default-sizes",
            "4.9.7",
            seed=5,
            messages=500,
            settings=_DEFAULT_SIZES,
            linger_s=12,
        ),
        StorePlan(
            "levels-5.5.0-combine-crash",
            "5.5.0",
            seed=10,
            messages=600,
            killed=True,
            settings=_COMBINED,
            linger_s=12,
        ),
    )
}

_EPILOGUE: Final = """\
For each store NAME three files are written:
  NAME.tar.xz             the store root as the stopped (or killed) broker left it, a sparse tar
  NAME.expected.jsonl.xz  the truth, one line a message: what the producer got confirmed, joined
                          with what RocketMQ's own client reads from a copy; no code of ours reads
  NAME.about.json         version, settings, counts, when and how the broker was stopped
Times and ids differ from run to run; the messages themselves follow from the seed.

Needs a JDK, Maven, and the tar command; takes about 7 minutes for all.

example:
  python tests/interop/make_fixtures.py --only wheel-5.5.0-clean --into /tmp/fixtures
"""


def pack(store: RealStore, name: str, into: Path) -> None:
    """Write a store's three files; holes stay holes, RocksDB's own settings are left out."""
    tar = ["tar", "--sparse", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]
    command = [*tar, "--exclude=OPTIONS-*", "-C", str(store.root), "-cf", "-", "."]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        lzma.open(into / f"{name}.tar.xz", "wb", preset=9) as packed,
    ):
        assert process.stdout is not None
        while block := process.stdout.read(1 << 20):
            packed.write(block)
    if process.returncode != 0:
        raise RuntimeError(f"tar ended with {process.returncode}")
    with lzma.open(into / f"{name}.expected.jsonl.xz", "wt", encoding="utf-8") as lines:
        for line in store.lines:
            lines.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    about = json.dumps(store.about, ensure_ascii=False, indent=1)
    (into / f"{name}.about.json").write_text(about + "\n", encoding="utf-8")


def main() -> int:
    """Make the chosen stores."""
    parser = argparse.ArgumentParser(
        description="Make the stores of tests/fixtures afresh, from real RocketMQ brokers.",
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--into", type=Path, default=ROOT / "tests" / "fixtures", help="folder to write to"
    )
    parser.add_argument(
        "--only", action="append", choices=list(PLANS), help="one store (repeatable); default: all"
    )
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if reason := missing_tools():
        parser.error(reason)
    given.into.mkdir(parents=True, exist_ok=True)
    for name in given.only or PLANS:
        logging.info("%s: a broker fills it", name)
        with tempfile.TemporaryDirectory(prefix=f"{name}-") as scratch:
            store = make_store(PLANS[name], Path(scratch))
            pack(store, name, given.into)
        logging.info("%s: %s", name, store.about["counts"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
