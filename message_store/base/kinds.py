# SPDX-License-Identifier: Apache-2.0
"""Which kinds arguments and settings may be of; others are refused by their names."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from numbers import Integral
from types import UnionType
from typing import Any, ParamSpec, TypeVar, cast

from message_store.base.errors import BadFieldError

P = ParamSpec("P")
R = TypeVar("R")
Kind = type | UnionType

CALLABLE = cast(type, Callable)
"""The kind of what is called back."""


def require_kind(name: str, value: object, kind: Kind) -> None:
    """Raise BadFieldError for what is of another kind."""
    if not isinstance(value, kind):
        expected = str(kind) if isinstance(kind, UnionType) else kind.__name__
        raise BadFieldError(f"{name} is of another kind", expected=expected, found=repr(value)[:64])


def require_whole(name: str, value: object, first: int, last: int) -> None:
    """Raise BadFieldError for what is no whole number from ``first`` to ``last``."""
    is_number = isinstance(value, Integral) and not isinstance(value, bool)
    if not (is_number and first <= cast(int, value) <= last):
        expected = f"a whole number from {first} to {last}"
        raise BadFieldError(f"'{name}' is out of range", expected=expected, found=repr(value)[:64])


def whole(first: int, last: int) -> Callable[[object, Any, object], None]:
    """An attrs validator for a number of a setting, see ``require_whole``."""
    return lambda _owner, attribute, value: require_whole(attribute.name, value, first, last)


def takes(**kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a method refuse arguments that are of another kind, by BadFieldError, before it begins.

    It costs a microsecond. A method that takes not much longer asks ``require_kind`` when it
    has failed.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        names = [name for name in signature(method).parameters if name != "self"]
        is_method = "self" in signature(method).parameters

        @wraps(method)
        def checked(*args: P.args, **given: P.kwargs) -> R:
            for name, value in (*zip(names, args[is_method:], strict=False), *given.items()):
                if name in kinds:
                    require_kind(name, value, kinds[name])
            return method(*args, **given)

        return checked

    return decorate
