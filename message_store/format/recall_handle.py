# SPDX-License-Identifier: Apache-2.0
"""The text by which a pending message is cancelled: RocketMQ's recall handle, version 1."""

import base64
import binascii

import attrs

from message_store.base.errors import BadFieldError
from message_store.format.java_numbers import parse_long

_VERSION = "v1"


@attrs.frozen
class RecallHandle:
    """Topic, broker, time and unique key of one message.

    ``due_ms`` is when the engine will deliver it; for the wheel the end of its slot.

    >>> handle = RecallHandle("TopicA", "broker-a", 1700003600001, "0A0102030001")
    >>> handle.text()
    'djEgVG9waWNBIGJyb2tlci1hIDE3MDAwMDM2MDAwMDEgMEEwMTAyMDMwMDAx'
    >>> RecallHandle.parse(handle.text()) == handle
    True
    """

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def text(self) -> str:
        """The handle as clients pass it on: base64, the URL-safe alphabet, without line breaks.

        Raises BadFieldError for a part that is empty or holds a space: it could not be read back.
        """
        topic, broker_name, unique_key = self.topic, self.broker_name, self.unique_key
        text = f"{_VERSION} {topic} {broker_name} {self.due_ms} {unique_key}"
        if text.count(" ") != 4 or not (topic and broker_name and unique_key):
            raise BadFieldError("not fit for a recall handle", found=repr(text))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def parse(cls, text: str) -> "RecallHandle":
        """The parts of a handle. Raises BadFieldError for text that is none."""
        try:
            parts = base64.b64decode(text.encode(), b"-_", validate=True).decode().split(" ")
        except (binascii.Error, UnicodeError) as error:
            raise BadFieldError("not a recall handle", found=repr(text[:64])) from error
        if len(parts) != 5 or parts[0] != _VERSION or not all(parts):
            raise BadFieldError("not a recall handle of version 1", found=repr(text[:64]))
        return cls(parts[1], parts[2], parse_long(parts[3]), parts[4])
