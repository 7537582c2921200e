# SPDX-License-Identifier: Apache-2.0
"""A bench for each engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumer_groups.group_bench import ENGINE_NAMES, GroupBench


@pytest.fixture(params=ENGINE_NAMES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GroupBench]:
    bench = GroupBench(request.param, tmp_path / "store")
    yield bench
    bench.store.close()
