# SPDX-License-Identifier: Apache-2.0
"""The RocketMQ versions that judge, their jars, and the judge compiled against them."""

from pathlib import Path
from typing import Final

from compare.rocketmq.jars import classes, jars, missing_tools

__all__ = ["NEWEST", "VERSIONS", "jars", "judge_classes", "missing_tools", "rolling_broker"]

VERSIONS: Final = ("4.9.7", "5.3.3", "5.4.0", "5.5.0")
NEWEST: Final = VERSIONS[-1]

_JUDGE: Final = Path(__file__).parent / "java" / "Judge.java"
_ROLLING_BROKER: Final = _JUDGE.with_name("RollingBroker.java")


def judge_classes(version: str) -> Path:
    """Return the folder with the judge's classes, compiled against that version."""
    return classes(version, "judge", [_JUDGE])


def rolling_broker(version: str) -> Path:
    """Return the folder with the broker whose timeline rolls often; versions that have one."""
    return classes(version, "rolling-broker", [_ROLLING_BROKER])
