# SPDX-License-Identifier: Apache-2.0
"""Whose a store of timed messages is: a hierarchical wheel's, or that of a wheel in files.

A small file says that the database tells which messages are pending. It comes when the database is
whole and on disk, and goes when a wheel is. It counts while brokers are kept out: whoever is
stopped in between begins again. Needs no database, so that anybody can ask.
"""

import json
from pathlib import Path
from typing import Any

import attrs

from message_store.base.errors import SourceError
from message_store.files.small_files import (
    is_directory,
    is_present,
    read_beginning,
    read_small_file,
    remove_file,
    replace_file,
)
from message_store.files.store_root import StoreRoot
from message_store.reading.engine_choice import hierarchy_mark, is_hierarchical

_GUARD = (
    b"The timers of this store are in delaywheel/hierarchy. A broker would repeat or lose messages,"
    b" so this file keeps it from starting: open the store with delaywheel's WheelStore first.\n"
)
_VOID = "index-is-damaged"


@attrs.frozen
class Active:
    """What must be known of a hierarchical wheel even where its database is lost.

    ``names`` says that every record which it delivered since the index, or what it took over, names
    the first record of its message. Those of earlier versions do not.
    """

    precision_ms: int
    slot_precision_ms: int
    names: bool = True


def has_timers(root: StoreRoot) -> bool:
    """Whether a wheel was ever here, in files or in a database. Raises SourceError."""
    places = root.timer_wheel, root.timer_log, root.timer_queue(), hierarchy_mark(root)
    return any(is_present(path) for path in places)


def home(root: StoreRoot) -> Path:
    """Where everything lies that is a hierarchical wheel's own."""
    return root.own / "hierarchy"


def index_path(root: StoreRoot) -> Path:
    """Where the database lies."""
    return home(root) / "index"


def void_index(root: StoreRoot) -> None:
    """Say durably that the index was found damaged; of a store that was moved while it was open,
    nothing is said at the old place. Raises TargetError.
    """
    if not is_directory(home(root)):
        return
    replace_file(home(root) / _VOID, b"The index cannot be read: the next opening makes it anew.\n")


def is_void(root: StoreRoot) -> bool:
    """Whether the index was found damaged. Raises SourceError."""
    return is_present(home(root) / _VOID)


def trust_index(root: StoreRoot) -> None:
    """The index is a new one, and durable. Raises TargetError."""
    if is_void(root):
        remove_file(home(root) / _VOID)


def read_active(root: StoreRoot) -> Active | None:
    """What the store's hierarchical wheel is; None where the store is not one's.

    Raises SourceError for a file that cannot be read, or that says nothing that we know.
    """
    path = hierarchy_mark(root)
    content = read_small_file(path) if is_hierarchical(root) else None
    if content is None:
        return None
    try:
        facts: Any = json.loads(content)
        widths_ms = int(facts["precision_ms"]), int(facts["slot_precision_ms"])
        return Active(*widths_ms, names=bool(facts.get("names", False)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{path}: damaged: it should say how fine the promises are") from error


def claim(root: StoreRoot, active: Active) -> None:
    """Make the store a hierarchical wheel's, durably. Raises TargetError."""
    replace_file(hierarchy_mark(root), json.dumps(attrs.asdict(active)).encode())


def guard(root: StoreRoot) -> None:
    """Keep brokers from starting: they refuse a wheel of another length. Raises TargetError."""
    if not is_guarded(root):
        replace_file(root.timer_wheel, _GUARD)


def is_guarded(root: StoreRoot) -> bool:
    """Whether brokers are kept from starting. Raises SourceError."""
    return read_beginning(root.timer_wheel, len(_GUARD) + 1) == _GUARD


def release(root: StoreRoot) -> None:
    """Make the store that of a wheel in files. Raises TargetError."""
    remove_file(hierarchy_mark(root), is_durable=True)
