# SPDX-License-Identifier: Apache-2.0
"""What all tests share: what a missing tool means, how hard Hypothesis tries, a quiet Spark."""

import os
from functools import cache

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
def lacking_java() -> str | None:
    """What is wrong with this machine's Java, or None: the product's own sentence."""
    # Only tests that start Spark pay for importing it.
    from migrate.session import JavaMissingError, require_java

    try:
        require_java()
    except JavaMissingError as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test needs and this machine lacks is a skip on a laptop and a failure in CI."""
    if item.get_closest_marker("spark") and (lacking := lacking_java()):
        if os.environ.get("CI"):
            pytest.fail(lacking)
        pytest.skip(lacking)
