# SPDX-License-Identifier: Apache-2.0
"""Guards taken out of the product are noticed: tools/mutations.toml says which, by which test."""

import re

import pytest

from tools.mutations import MUTATIONS, ROOT, Mutation, is_noticed

NAMES = [mutation.name for mutation in MUTATIONS]


def test_every_mutation_changes_what_is_there_and_names_a_test_that_is() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    tests = {name for text in texts for name in re.findall(r"^ *def (\w+)\(", text, re.M)}
    for mutation in MUTATIONS:
        text = (ROOT / mutation.path).read_text(encoding="utf-8")
        assert text.count(mutation.old) == 1, mutation.name
        path, _, name = mutation.test.partition("::")
        assert (ROOT / path).exists(), mutation.name
        assert name.partition("[")[0].rpartition("::")[2] in tests, mutation.name
    assert len(set(NAMES)) == len(NAMES) >= 10


@pytest.mark.nightly
@pytest.mark.xdist_group("mutations")  # one after the other: all are made in one place
@pytest.mark.parametrize("mutation", MUTATIONS, ids=NAMES)
def test_a_guard_that_is_taken_out_is_missed(mutation: Mutation) -> None:
    assert is_noticed(mutation)
