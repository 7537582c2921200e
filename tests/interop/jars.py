# SPDX-License-Identifier: Apache-2.0
"""The RocketMQ versions that judge, their jars, and the judge compiled against them."""

from pathlib import Path
from typing import Final

from compare.rocketmq.jars import OTHERS, classes, jars, missing_tools

__all__ = [
    "LAST",
    "NEWEST",
    "VERSIONS",
    "client_of",
    "jars",
    "judge_classes",
    "missing_tools",
    "rolling_broker",
]

VERSIONS: Final = ("4.9.7", "5.3.3", "5.4.0", "5.5.0", "5.5.1")
NEWEST: Final = "5.5.0"
"""The newest of which all parts are published."""
LAST: Final = VERSIONS[-1]
"""Its broker, with client, name server and tools of the one before."""

_JUDGE: Final = Path(__file__).parent / "java" / "Judge.java"
_ROLLING_BROKER: Final = _JUDGE.with_name("RollingBroker.java")


def client_of(version: str) -> str:
    """Return the version of the client that speaks with a broker of this version."""
    return OTHERS.get(version, version)


def judge_classes(version: str) -> Path:
    """Return the folder with the judge's classes, compiled against the client of that version."""
    version = client_of(version)
    return classes(version, "judge", [_JUDGE])


def rolling_broker(version: str) -> Path:
    """Return the folder with the broker whose timeline rolls often; versions that have one."""
    return classes(version, "rolling-broker", [_ROLLING_BROKER])
