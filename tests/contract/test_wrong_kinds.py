# SPDX-License-Identifier: Apache-2.0
"""Every argument of every engine's ``open``, given what is of no kind that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delaywheel import open_store
from legacy_levels import LevelStore
from message_store.base.errors import OptionsError
from time_index import TimeIndexStore
from timer_wheel import HierarchicalWheelStore, WheelStore

OPENINGS: dict[str, Callable[..., Any]] = {
    "levels": LevelStore.open,
    "wheel": WheelStore.open,
    "hierarchy": HierarchicalWheelStore.open,
    "time-index": TimeIndexStore.open,
    "any": partial(open_store, engine="levels"),
}
ARGUMENTS = [
    (opening, name)
    for opening, open_it in OPENINGS.items()
    for name in inspect.signature(open_it).parameters
    if (opening, name) != ("any", "path")  # Python's own TypeError
]


@pytest.mark.parametrize(("opening", "name"), ARGUMENTS)
def test_what_is_of_another_kind_is_refused_by_name_before_anything_is_made(
    opening: str, name: str, tmp_path: Path
) -> None:
    for wrong in ("x", 1.5, b"x", (), object()):
        given: dict[str, Any] = {"path": tmp_path / "store", name: wrong}
        if given["path"] == "x":
            continue
        with pytest.raises((ValueError, OptionsError), match=rf"(?i){name}") as refusal:
            OPENINGS[opening](**given)
        assert len(str(refusal.value).splitlines()) == 1
        assert not list(tmp_path.iterdir())
