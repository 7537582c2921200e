# SPDX-License-Identifier: Apache-2.0
"""What is handed to the official producer: messages of every kind, made from a seed."""

import base64
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

TOPICS: Final = (
    "OrderTimeout",
    "PayNotify",
    "coupon-expire",
    "T_1",
    "a_rather_long_topic_name_made_to_exceed_sixty_characters_for_delay_tests",
)
QUEUES: Final = 4
TOPIC_TABLE: Final[Mapping[str, int]] = dict.fromkeys(TOPICS, QUEUES)

# Tags, property values and a name that a careless codec would garble.
_TAGS: Final = ("TagA", "TagB", "order-cancelled", "取消", None)
_CITIES: Final = ("上海", "北京", "Zürich", "São Paulo", "🚲 Utrecht")
_CLIENT_COMPRESSES_ABOVE: Final = 4096


@attrs.frozen
class Outgoing:
    """One message to send. Of the delays at most one is set; none is an ordinary message.

    `deliver_ms` is an instant, `delay_ms` and `delay_sec` count from the send, and
    `transaction` is how a transactional message ends: commit, rollback or unknown.
    """

    number: int
    topic: str
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = attrs.field(factory=dict)
    delay_level: int | None = None
    deliver_ms: int | None = None
    delay_ms: int | None = None
    delay_sec: int | None = None
    transaction: str | None = None

    @property
    def body_sha1(self) -> str:
        """The digest by which bodies are compared: of the body before any compression."""
        return hashlib.sha1(self.body).hexdigest()

    def line(self) -> dict[str, Any]:
        """Return the message as the judge's `send` takes it; what is not set is left out."""
        values = {
            "tags": self.tags,
            "keys": list(self.keys),
            "properties": dict(self.properties),
            "delayLevel": self.delay_level,
            "deliverMs": self.deliver_ms,
            "delayMs": self.delay_ms,
            "delaySec": self.delay_sec,
            "transaction": self.transaction,
        }
        given = {key: value for key, value in values.items() if value is not None}
        body = base64.b64encode(self.body).decode("ascii")
        return {"n": self.number, "topic": self.topic, "body": body, **given}

    def due_ms(self, sent_ms: int, level_delays_ms: Mapping[int, int]) -> int:
        """Return when the message may be delivered if it was sent at `sent_ms`."""
        if self.delay_level is not None:
            return sent_ms + level_delays_ms[self.delay_level]
        if self.delay_ms is not None:
            return sent_ms + self.delay_ms
        if self.delay_sec is not None:
            return sent_ms + self.delay_sec * 1000
        return sent_ms if self.deliver_ms is None else max(sent_ms, self.deliver_ms)


def varied(
    seed: int, count: int, *, body_bytes: tuple[int, int] = (100, 1000), large_every: int = 12
) -> Iterator[Outgoing]:
    """Make ordinary messages over all topics, with tags, keys and user properties in any script.

    One in `large_every` has a body of 4 to 20 KB, which clients compress.
    """
    dice = random.Random(seed)
    for number in range(count):
        large = dice.randrange(large_every) == 0
        least, most = (_CLIENT_COMPRESSES_ABOVE + 1, 20_000) if large else body_bytes
        yield Outgoing(
            number=number,
            topic=dice.choice(TOPICS),
            body=_body(dice, dice.randint(least, most)),
            tags=dice.choice(_TAGS),
            keys=tuple(f"k{dice.randrange(10**6)}" for _ in range(dice.randrange(4))),
            properties=_properties(dice),
        )


def with_levels(
    messages: Iterator[Outgoing], levels: Sequence[int], seed: int, ordinary_every: int = 0
) -> list[Outgoing]:
    """Give each message one of the levels by chance; one in `ordinary_every` gets none."""
    dice = random.Random(seed)
    return [
        message
        if ordinary_every and dice.randrange(ordinary_every) == 0
        else attrs.evolve(message, delay_level=dice.choice(levels))
        for message in messages
    ]


def level_delays_ms(table: str) -> dict[int, int]:
    """Parse a broker's messageDelayLevel, such as "1s 5s 1m": level to delay."""
    units = {"s": 1000, "m": 60_000, "h": 3_600_000}
    delays = (int(entry[:-1]) * units[entry[-1]] for entry in table.split())
    return dict(enumerate(delays, start=1))


def _body(dice: random.Random, length: int) -> bytes:
    """A random start, then repeated words: it shrinks when compressed, but not to nothing."""
    noise = dice.randbytes(max(1, length // 6))
    return (noise + b"the same words again, " * (length // 22 + 1))[:length]


def _properties(dice: random.Random) -> dict[str, str]:
    properties: dict[str, str] = {}
    if dice.random() < 0.7:
        properties["orderId"] = str(dice.randrange(10**9))
    if dice.random() < 0.4:
        properties["城市"] = dice.choice(_CITIES)
    return properties
