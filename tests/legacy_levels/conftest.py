# SPDX-License-Identifier: Apache-2.0
"""The real level stores, each unpacked once a session."""

from collections.abc import Callable
from functools import cache

import pytest

from tests.independent.real_stores import RealStore, unpack


@pytest.fixture(scope="session")
def real_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RealStore]:
    return cache(lambda name: unpack(name, tmp_path_factory.mktemp(name) / "store"))
