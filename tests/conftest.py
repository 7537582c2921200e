# SPDX-License-Identifier: Apache-2.0
"""What all tests share: what a missing tool means, how hard Hypothesis tries, a quiet Spark."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Examples are many and small; how long one takes on a busy machine says nothing about the code.
settings.register_profile("default", max_examples=50, deadline=None, print_blob=True)
settings.register_profile(
    "deep",
    parent=settings.get_profile("default"),
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Spark on one machine: never ask the network which address this host has.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@cache
def java_major() -> int:
    """The major version of the Java that Spark would start; 0 when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return 0
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test needs and this machine lacks is a skip on a laptop and a failure in CI."""
    if item.get_closest_marker("spark") and java_major() < 17:
        lacking = f"Spark needs Java 17 or newer, found {java_major() or 'none'}"
        if os.environ.get("CI"):
            pytest.fail(lacking)
        pytest.skip(lacking)
