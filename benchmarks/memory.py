# SPDX-License-Identifier: Apache-2.0
"""How much memory a conversion of very many small messages takes: of its driver, and of a worker.

The store is made by another process, so that nothing of that is in the driver's memory. Private
memory is looked at all the time; the driver's before the conversion is reported as well.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.bars import DRIVER_MESSAGES
from benchmarks.convert import convert_round, require_room
from benchmarks.machine import RESULTS, facts, keeping, private_bytes, tell
from migrate.spark.session import spark_session

_ROOT = Path(__file__).resolve().parent.parent
_DISK_BYTES_A_MESSAGE = 800
"""Source and target."""
_BODY_BYTES = 16


def make_source(path: Path, messages: int) -> None:
    """A store of small messages, by a process of its own."""
    flags = ["--messages", str(messages), "--body-bytes", str(_BODY_BYTES), "--quiet"]
    command = [sys.executable, "-m", "cli", "generate", str(path / "source"), *flags]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def measure(path: Path, messages: int, spark: SparkSession) -> dict[str, float]:
    """One conversion."""
    path.mkdir()
    tell(f"{messages:,} messages: making the store")
    make_source(path, messages)
    tell(f"{messages:,} messages: converting")
    before = private_bytes(os.getpid())
    found = convert_round(path, spark, watched=True)
    shutil.rmtree(path)
    return {"messages": messages, "driver_bytes_before": before, **found}


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[DRIVER_MESSAGES])
    parser.add_argument("--directory", type=Path, help="where to work; 41 GB for 50 million")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        require_room(place, max(options.messages), _DISK_BYTES_A_MESSAGE)
        measured: dict[str, Any] = {
            "facts": facts(place),
            "body_bytes": _BODY_BYTES,
            "runs": [],
        }
        with spark_session() as spark, keeping("memory", measured, options.results):
            for count in options.messages:
                measured["runs"].append(measure(place / str(count), count, spark))


if __name__ == "__main__":
    main()
