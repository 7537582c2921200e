# SPDX-License-Identifier: Apache-2.0
"""Lets the assertions of the shared classes explain themselves, as those of test modules do; and
lets the wheel look ahead at slots of any size, so that whatever an engine must do it does so too.
"""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite(
    "tests.contract.delay_store_contract",
    "tests.contract.durable_store_contract",
    "tests.contract.delay_store_machine",
)


@pytest.fixture(autouse=True, scope="module")
def look_ahead() -> Iterator[None]:
    """Elsewhere slots as small as those of tests are not worth it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timer_wheel.foresight.WORTH_IT_UNITS", 1)
        yield
