# SPDX-License-Identifier: Apache-2.0
"""Every argument of every engine's ``open``, of the methods of a store, and of those of its groups,
given what is of no kind that it takes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from consumer_groups import (
    ConsumerGroup,
    consumer_group,
    group_names,
    group_topics,
    message_state,
)
from delaywheel import open_store
from legacy_levels import LevelStore
from legacy_levels.engine.rules import AsyncRules, LevelTimings
from message_store import AfterMs, AtLevel, DelayStore, ManualClock, MemoryStore, Message
from message_store.base.errors import BadFieldError, OptionsError
from message_store.columns.message_batch import MessageBatch
from message_store.interface.promise_rules import DelayLimit
from message_store.life.by_key import cancel_by_key, find_receipts, trace_message
from message_store.writing.settings import StoreSettings
from time_index import TimeIndexStore
from timer_wheel import HierarchicalWheelStore, WheelStore
from timer_wheel.hierarchy.opening import HierarchySettings
from timer_wheel.wheel.settings import WheelSettings

NOW = 1_793_000_000_000
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


@pytest.mark.parametrize("name", ["topic", "tags", "queue_id", "flag", "unique_key"])
@pytest.mark.parametrize("wrong", [1.0, True, np.True_, 1.5, b"x", (), object()])
def test_a_field_of_a_message_of_another_kind_is_refused_by_name(name: str, wrong: object) -> None:
    """A queue of 1.0 was taken, and the message was found by nobody."""
    fields: dict[str, Any] = {"topic": "orders", "body": b"body", name: wrong}
    with pytest.raises(BadFieldError, match=name):
        Message(**fields)


def test_a_number_of_a_column_is_a_queue_id() -> None:
    assert Message("orders", b"body", queue_id=np.int32(3)).queue_id == 3  # type: ignore[arg-type]


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


# --- the methods of an open store, and of its groups ----------------------------------------------

WRONG: tuple[Any, ...] = (None, 5, "", 1.5, b"x", (), [], {}, object(), AtLevel(1), -1, "no\nkind")
RIGHT: dict[str, tuple[type, ...]] = {
    "due": (AtLevel,),
    "due_ms": (),
    "unique_key": (str,),
    "key": (str,),
    "group": (str,),
    "name": (str,),
    "topic": (str,),
    "tags": (str,),
    "now_ms": (int,),
    "level": (int,),
    "due_after_ms": (int,),
    "due_before_ms": (int,),
    "invisible_ms": (int,),
    "which": (str,),
    "max_retries": (int,),
    "max_messages": (int,),
    "position": (dict,),
    "start": (dict,),
}
"""Kinds of ``WRONG`` that an argument of this name may be of. A text must not be empty for all."""
VALID: dict[str, Any] = {
    "message": Message("orders", b"body"),
    "due": AfterMs(1_000),
    "batch": MessageBatch.of([Message("orders", b"body")]),
    "due_ms": [NOW + 1_000],
    "now_ms": NOW,
    "unique_key": "key",
    "which": "key",
    "name": "orders",
    "topic": "orders",
    "position": "first",
}
STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda _path: MemoryStore(ManualClock(NOW)),
    **{name: partial(open_it, clock=ManualClock(NOW)) for name, open_it in OPENINGS.items()},
}
FUNCTIONS: list[Callable[..., Any]] = [
    find_receipts,
    cancel_by_key,
    trace_message,
    message_state,
    consumer_group,
]


def _calls(store: Any) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Every public method, with values for what it needs."""
    receipt = store.schedule(Message("orders", b"one"), AfterMs(0))
    waits = store.schedule(Message("orders", b"two"), AfterMs(5_000))
    store.advance(receipt.promised_ms)
    group = consumer_group(store, "billing")
    message, *_ = group.receive("orders")
    needed = {**VALID, "receipt": waits, "message": VALID["message"]}
    held = {**VALID, "message": message, "letter": message, "messages": message}
    for name in vars(DelayStore):
        if not name.startswith("_") and name not in ("close", "check", "flush", "next_due_ms"):
            yield name, getattr(store, name), needed
    for name in vars(ConsumerGroup):
        method = getattr(group, name)
        if not name.startswith("_") and callable(method) and name != "stream":
            yield name, method, held
    for function in FUNCTIONS:
        yield function.__name__, partial(function, store), needed


def _wrong_for(parameter: inspect.Parameter) -> Iterator[Any]:
    kinds = RIGHT.get(parameter.name, ())
    for value in WRONG:
        is_default = value is None and parameter.default is None
        if not (is_default or isinstance(value, kinds)):
            yield value
    if parameter.name == "invisible_ms":
        yield -1


@pytest.mark.parametrize("kind", STORES)
def test_a_method_refuses_each_argument_of_another_kind_by_name_and_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    with STORES[kind](tmp_path / "store") as store:
        calls = list(_calls(store))
        before = [each.commit_log_offset for each in store.pending()]
        for name, method, needed in calls:
            for parameter in inspect.signature(method).parameters.values():
                for wrong in _wrong_for(parameter):
                    _require_refused(name, method, needed, parameter, wrong)
        assert [each.commit_log_offset for each in store.pending()] == before
        assert group_names(store) == ["billing"]
        assert list(group_topics(store, "billing")) == ["orders"]


def _require_refused(
    name: str,
    method: Callable[..., Any],
    needed: dict[str, Any],
    parameter: inspect.Parameter,
    wrong: Any,
) -> None:
    told = f"{name}({parameter.name}={wrong!r})"
    others = {
        each.name: needed[each.name]
        for each in inspect.signature(method).parameters.values()
        if each.default is inspect.Parameter.empty and each.name != parameter.name
    }
    is_row = parameter.kind is inspect.Parameter.VAR_POSITIONAL
    try:
        done = method(wrong) if is_row else method(**others, **{parameter.name: wrong})
        list(done) if name == "pending" else None
    except BadFieldError as refusal:
        sentence = str(refusal)
        assert parameter.name in sentence or repr(wrong) in sentence, told
    else:
        pytest.fail(f"{told} was taken, and gave {done!r}")


def test_a_group_receives_from_no_topic_that_cannot_be() -> None:
    with MemoryStore(ManualClock(NOW)) as store:
        group = consumer_group(store, "billing")
        for wrong in ("", "a b", "a/b"):
            with pytest.raises(BadFieldError, match="topic"):
                group.receive(wrong)
        assert group_topics(store, "billing") == {}


# --- numbers of settings --------------------------------------------------------------------------

SETTINGS = (
    StoreSettings, WheelSettings, HierarchySettings, DelayLimit, LevelTimings, AsyncRules,
)  # fmt: skip
NUMBERS = [
    (settings, field.name)
    for settings in SETTINGS
    for field in attrs.fields(settings)
    if field.type in (int, int | None, "int", "int | None")
]
BEYOND: tuple[Any, ...] = (-1, -(2**31), 2**63, 2**70, 1.5, math.nan, True, "x", b"1")
NAMED = {name for _settings, name in NUMBERS}


@pytest.mark.parametrize(("settings", "name"), NUMBERS)
def test_each_number_of_a_setting_has_a_range(settings: Any, name: str) -> None:
    needed = {"precision_ms": 1_000} if settings is WheelSettings else {}
    for wrong in BEYOND:
        with pytest.raises(BadFieldError, match=name):
            settings(**{**needed, name: wrong})


@pytest.mark.parametrize(
    ("opening", "name"), [each for each in ARGUMENTS if each[1] in NAMED and each[0] != "any"]
)
def test_a_number_out_of_its_range_is_refused_before_anything_is_made(
    opening: str, name: str, tmp_path: Path
) -> None:
    for wrong in BEYOND:
        with pytest.raises(ValueError, match=name):
            OPENINGS[opening](tmp_path / "store", **{name: wrong})
        assert not list(tmp_path.iterdir())
