# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's own engines, in a JVM of their own, deliver from stores that are not theirs."""

import subprocess
from pathlib import Path

from compare.rocketmq.jars import classes, jars
from compare.rocketmq.java_engines import JAVA_ROOT, OPENED

_DEADLINE_S = 400.0


def run_witness(version: str, engine: str, scratch: Path, *words: object) -> None:
    """Run the witness of an engine, whose program's name begins so, with these arguments."""
    sources = [JAVA_ROOT / name for name in ("Entrant.java", f"{engine}Entrant.java")]
    witness = Path(__file__).parent / "java" / f"{engine}Witness.java"
    made = classes(version, "witness", [*sources, witness])
    command = [
        "java", "-Xmx1g", *OPENED, f"-Duser.home={scratch}",
        "-cp", f"{made}:{jars(version)}/*", f"{engine}Witness", *map(str, words),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
