# SPDX-License-Identifier: Apache-2.0
"""The record of one pending message in two steps: checked and measured, then given its place."""

from collections.abc import Iterable

import attrs

from message_store.format.message import Message
from message_store.intake.records import PLAIN_FORM, RecordForm, RecordMaker


@attrs.frozen(eq=False)
class Draft:
    """A record that lacks only what is known when it gets its place.

    ``tags_code`` is the hash of the message's tag; 0 where there is none.
    """

    size_bytes: int
    tags_code: int
    unique_key: str
    _maker: RecordMaker
    _wanted: tuple[Message, int | None, int | None, Iterable[tuple[str, str]]]

    def record(
        self,
        queue_id: int,
        queue_offset: int,
        commit_log_offset: int,
        now_ms: int,
        born_ms: int | None = None,
    ) -> bytes:
        """The record for this place in the system topic's queue and in the log, stored now.

        It is born now too, if not told otherwise.
        """
        return self._maker.record(
            *self._wanted,
            queue_id,
            queue_offset,
            lambda _: commit_log_offset,
            now_ms,
            now_ms if born_ms is None else born_ms,
        )[0]


def draft(
    message: Message,
    *,
    system_topic: str,
    unique_key: str | None = None,
    delay_level: int | None = None,
    out_ms: int | None = None,
    extra: Iterable[tuple[str, str]] = (),
    form: RecordForm = PLAIN_FORM,
) -> Draft:
    """The record in which ``message`` waits, before it has a place.

    The unique key is the message's own, or a new one, if none is given. ``extra`` are properties
    that the engine itself adds behind the user's. Raises BadFieldError for a message that cannot be
    stored, or that no broker could deliver.
    """
    message = attrs.evolve(message, unique_key=unique_key or message.unique_key)
    wanted = delay_level, out_ms, tuple(extra)
    maker = RecordMaker(system_topic, form)
    record, _, tags_code, key = maker.record(message, *wanted, 0, 0, lambda _: 0, 0, 0)
    stamped = attrs.evolve(message, unique_key=key)
    return Draft(len(record), tags_code, key, maker, (stamped, *wanted))
