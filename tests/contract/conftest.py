# SPDX-License-Identifier: Apache-2.0
"""Lets the assertions of the shared classes explain themselves, as those of test modules do."""

import pytest

pytest.register_assert_rewrite(
    "tests.contract.delay_store_contract",
    "tests.contract.durable_store_contract",
    "tests.contract.delay_store_machine",
)
