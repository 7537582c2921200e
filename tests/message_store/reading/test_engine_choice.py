# SPDX-License-Identifier: Apache-2.0
"""A directory tells whose it is, and is not guessed about where it does not."""

from pathlib import Path

import pytest

from message_store.base.errors import OptionsError, SourceError
from message_store.files.store_root import StoreRoot
from message_store.reading.engine_choice import choose_engine, engines_in, require_engine

LEVELS = ("consumequeue/SCHEDULE_TOPIC_XXXX/2/",)
HIERARCHY = "delaywheel/hierarchy/active"
OFFSETS = ("config/delayOffset.json",)


@pytest.mark.parametrize(
    ("entries", "engines"),
    [
        ((), ()),
        (("consumequeue/Orders/0/",), ()),
        (LEVELS, ("levels",)),
        (OFFSETS, ("levels",)),
        (("timerwheel",), ("wheel",)),
        (("timerlog/00000000000000000000",), ("wheel",)),
        (("timerlog/",), ()),
        (("consumequeue/rmq_sys_wheel_timer/0/",), ("wheel",)),
        (("timerwheel", *OFFSETS), ("wheel",)),
        (("timerwheel", *LEVELS), ("levels", "wheel")),
        (("timerwheel", HIERARCHY), ("hierarchy",)),
        ((HIERARCHY, *LEVELS), ("levels", "hierarchy")),
        (("consumequeue/rmq_sys_time_index/0/",), ("time-index",)),
        (("delaywheel/time-index/state",), ("time-index",)),
        (("consumequeue/rmq_sys_time_index/0/", *LEVELS), ("levels", "time-index")),
    ],
)
def test_what_tells_an_engine(
    entries: tuple[str, ...], engines: tuple[str, ...], tmp_path: Path
) -> None:
    for entry in ("commitlog/", *entries):
        path = tmp_path / entry
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if entry.endswith("/") else path.touch()
    store = StoreRoot(tmp_path)
    assert engines_in(store) == engines
    assert choose_engine(store, "levels") == "levels"
    if len(engines) == 1:
        assert choose_engine(store) == engines[0]
    else:
        with pytest.raises(OptionsError, match="name the engine"):
            choose_engine(store)


def test_only_an_engine_that_has_put_something_into_a_store_is_opened(tmp_path: Path) -> None:
    store = StoreRoot(tmp_path)
    require_engine(store, "levels")
    require_engine(store, "wheel")
    (tmp_path / "timerwheel").touch()
    require_engine(store, "wheel")
    with pytest.raises(
        OptionsError, match="a store of a wheel; nothing was ever put into its levels"
    ):
        require_engine(store, "levels")
    require_engine(store, "hierarchy")


def test_a_new_place_takes_the_engine_that_is_asked_for(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        assert choose_engine(StoreRoot(place), "wheel", may_be_new=True) == "wheel"
        with pytest.raises(OptionsError, match="neither levels nor a wheel"):
            choose_engine(StoreRoot(place), may_be_new=True)
        with pytest.raises(SourceError):
            choose_engine(StoreRoot(place), "wheel")


def test_what_is_no_store_is_no_place_for_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(SourceError):
            choose_engine(StoreRoot(place), "wheel", may_be_new=True)
