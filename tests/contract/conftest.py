# SPDX-License-Identifier: Apache-2.0
"""Lets the assertions of the shared classes explain themselves, as those of test modules do; and
lets engines look ahead at slots and make files ahead of any size, so that whatever they must do
they do so too.
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
    """Elsewhere slots and files as small as those of tests are not worth it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timer_wheel.wheel.turn.WORTH_IT_UNITS", 1)
        patch.setattr("message_store.writing.pages_ahead.AHEAD_FROM_BYTES", 1)
        yield
