# SPDX-License-Identifier: Apache-2.0
"""Damage of any kind, anywhere in a source: a sentence or a sound target, never a crash."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from message_store.base.errors import DelayStoreError
from migrate.convert import convert
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    DeliveredCopy,
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
)
from tests.migrate.conversions import assert_books_add_up, checked_target, options_for

DONE = LevelMessage(level=1, body=b"done")
ITEMS: list[Item] = [
    DONE,
    *(LevelMessage(level=number % 3 + 1, body=bytes(number * 9 + 1)) for number in range(20)),
    OrdinaryMessage(),
    DeliveredCopy(of=DONE),
    LevelMessage(level=2, extra_pairs=[("__CRC32#", "1")]),
]

INTERESTING = [
    *(number.to_bytes(4, "big") for number in (0, 1, 90, 2**31 - 1, 2**32 - 1, 0xDAA320A7)),
    *(number.to_bytes(8, "big") for number in (2**63 - 1, 2**63, 2**64 - 1, 2**40)),
    b"\x01",
    b"\x02",
    b"\xff",
    b"DELAY\x01",
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of every kind of file, to be copied and damaged."""
    root = tmp_path_factory.mktemp("sound") / "source"
    return build_level_store(
        root, ITEMS, offsets={1: 1}, commit_log_file_bytes=4096, queue_file_bytes=200
    ).root


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, float, bytes | None]:
    """Which file, where in what it holds, and what stands there then (None: it ends there)."""
    where = draw(st.sampled_from(["commitlog"] * 3 + ["consumequeue"] * 3 + ["config", ""]))
    content = st.one_of(st.none(), st.sampled_from(INTERESTING), st.binary(min_size=1, max_size=30))
    return where, draw(st.floats(0, 1)), draw(content)


def damage(root: Path, place: tuple[str, float, bytes | None]) -> None:
    where, at, content = place
    files = sorted(path for path in (root / where).rglob("*") if path.is_file())
    # one number chooses the file and the place within
    path = files[min(int(at * len(files)), len(files) - 1)]
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0"))
    start = int(at * 7919 * max(1, used)) % max(1, used)
    if content is None:
        path.write_bytes(whole[:start])
    else:
        path.write_bytes((whole[:start] + content + whole[start + len(content) :])[: len(whole)])


@pytest.mark.check
@given(st.lists(damages(), min_size=1, max_size=4), st.sampled_from(["fail", "quarantine"]))
def test_any_damage_ends_in_a_sentence_or_in_a_sound_target(
    sound: Path,
    tmp_path_factory: pytest.TempPathFactory,
    places: list[tuple[str, float, bytes | None]],
    policy: str,
) -> None:
    place = tmp_path_factory.mktemp("damaged")
    shutil.copytree(sound, place / "source")
    for one in places:
        damage(place / "source", one)
    facts: dict[str, Any] = {"on_bad_record": policy, "source": place / "source"}
    options = options_for(place, **facts)
    try:
        report = convert(options)
    except DelayStoreError:
        event("refused")
        assert not (options.target / "delaywheel/conversion.json").exists()
    else:
        event("converted")
        assert_books_add_up(report)
        assert len(checked_target(options)) == report.total("converted")
    finally:
        shutil.rmtree(place)
