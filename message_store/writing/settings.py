# SPDX-License-Identifier: Apache-2.0
"""The settings of a store that is open for writing; the defaults are a broker's."""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType

import attrs

from message_store.base.clock import Clock
from message_store.base.errors import BadFieldError
from message_store.base.kinds import require_whole, whole
from message_store.files.store_root import (
    COMMIT_LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    TIMER_LOG_FILE_BYTES,
)
from message_store.format.delay_levels import DelayLevels
from message_store.format.dialect import Dialect
from message_store.format.java_numbers import INT_MAX, LONG_MAX
from message_store.format.message import LOCAL_HOST, Host
from message_store.format.queue_unit import QUEUE_UNIT

_HOUR_MS = 3_600_000
_TIMER_LOG_MIN_BYTES = 68
"""A file of the timer log holds one unit at least, of 52 bytes, and a blank of 16 behind it."""
Kind = type | tuple[type, ...]


@attrs.frozen
class StoreSettings:
    """Sizes of new files, and what to do with old ones.

    Files that are there keep their size: a broker that finds another refuses to start.
    ``retention_ms`` is how long a log file is kept after its last record was stored.
    ``store_host`` and ``broker_name`` go into records and receipts. ``repeat_after_kill`` is a
    broker's own way after a crash: deliver again what may have been delivered; otherwise what the
    log already holds is looked for, and nothing is repeated.
    """

    commit_log_file_bytes: int = attrs.field(
        default=COMMIT_LOG_FILE_BYTES, validator=whole(4_096, INT_MAX)
    )
    queue_file_bytes: int = attrs.field(default=QUEUE_FILE_BYTES)
    timer_log_file_bytes: int = attrs.field(
        default=TIMER_LOG_FILE_BYTES, validator=whole(_TIMER_LOG_MIN_BYTES, INT_MAX)
    )
    retention_ms: int = attrs.field(default=72 * _HOUR_MS, validator=whole(1, LONG_MAX))
    broker_name: str = attrs.field(default="broker-a")
    store_host: Host = LOCAL_HOST
    repeat_after_kill: bool = False

    @broker_name.validator
    def _check_broker_name(self, _attribute: object, value: str) -> None:
        if not value or " " in value:
            raise BadFieldError("a broker name that no recall handle can hold", found=repr(value))

    @queue_file_bytes.validator
    def _check_queue_file(self, attribute: "attrs.Attribute[int]", value: int) -> None:
        require_whole(attribute.name, value, QUEUE_UNIT.size, INT_MAX)
        if value % QUEUE_UNIT.size:
            expected = f"a multiple of {QUEUE_UNIT.size} bytes"
            raise BadFieldError(
                "'queue_file_bytes' cuts an entry in two", expected=expected, found=value
            )


_KINDS: dict[str, Kind] = {
    "path": (str, Path),
    "clock": (Clock, NoneType),
    "levels": (DelayLevels, NoneType),
    "dialect": Dialect,
    "settings": StoreSettings,
    "start_deliver_time_alias": bool,
}


def require_kinds(given: Mapping[str, object], **own: Kind) -> None:
    """Raise ValueError unless what an engine's ``open`` was ``given`` is of the kinds that every
    engine wants, and of its ``own``: it would notice when the directory is made, or never.
    """
    for name, kind in {**_KINDS, **own}.items():
        if not isinstance(given[name], kind):
            raise ValueError(f"'{name}' is of another kind: {given[name]!r}")
