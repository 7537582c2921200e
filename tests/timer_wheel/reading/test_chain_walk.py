# SPDX-License-Identifier: Apache-2.0
"""Chains: deep ones, damaged ones, and the compiled walk equal to the plain one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_wheel.reading import wheel_reader as chain_walk
from timer_wheel.reading.wheel_reader import Chains, walk_chains


def walked(heads: list[int], previous: list[int]) -> tuple[list[list[int]], list[int]]:
    return lists_of(walk_chains(np.array(heads, np.int64), np.array(previous, np.int64)))


def lists_of(chains: Chains) -> tuple[list[list[int]], list[int]]:
    pieces = np.split(chains.unit_indexes, np.cumsum(chains.lengths))[:-1]
    return [piece.tolist() for piece in pieces], chains.met.tolist()


def test_each_chain_is_given_oldest_first() -> None:
    chains, met = walked([3, 4, -1], [-1, -1, 0, 2, 1])
    assert chains == [[0, 2, 3], [1, 4], []]
    assert met == [-1, -1, -1]


@pytest.mark.parametrize(
    ("previous", "chain"),
    [
        ([-1, 1, 1], [1, 2]),
        ([-1, 2, 1], [1, 2]),
        ([-1, 0, 99], [2]),
        ([-1, 0, -7], [2]),
    ],
)
def test_a_link_that_leads_nowhere_or_forward_ends_the_chain(
    previous: list[int], chain: list[int]
) -> None:
    assert walked([2], previous) == ([chain], [-1])


@pytest.mark.parametrize("head", [-1, -5, 3, 10**15])
def test_a_slot_that_leads_nowhere_is_empty(head: int) -> None:
    assert walked([head], [-1, 0, 1])[0] == [[]]


def test_a_chain_that_runs_into_another_says_where() -> None:
    """What a 0 in place of -1 does: the last chain goes on at unit 0, which another holds."""
    chains, met = walked([1, 3], [-1, 0, 0, 2])
    assert chains == [[0, 1], [2, 3]]
    assert met == [-1, 0]


@pytest.mark.check
@given(st.data())
def test_the_compiled_walk_is_the_plain_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 60))
    indexes = st.integers(-2, count + 1)
    heads = np.array(data.draw(st.lists(indexes, max_size=20)), np.int64)
    links = data.draw(st.lists(indexes, min_size=count, max_size=count))
    previous = np.array(links, np.int64)
    plain = lists_of(walk_chains(heads, previous))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_walk, "_WORTH_COMPILING", 0)
        assert lists_of(walk_chains(heads, previous)) == plain
    # Whatever the links: each unit at most once, and every chain from old to new.
    units = [unit for chain in plain[0] for unit in chain]
    assert len(units) == len(set(units))
    assert all(chain == sorted(chain) for chain in plain[0])


def test_one_slot_can_hold_half_a_million_units() -> None:
    count = 500_000
    chains = walk_chains(np.array([count - 1]), np.arange(-1, count - 1))
    assert chains.lengths.tolist() == [count]
    assert np.array_equal(chains.unit_indexes, np.arange(count))
