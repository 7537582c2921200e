# SPDX-License-Identifier: Apache-2.0
"""Choices of a level store where brokers lose, repeat or deliver messages early.

The defaults are safe; a broker's own way has to be chosen by name.
"""

from typing import Literal, Self

import attrs

from message_store.base.errors import OptionsError
from message_store.base.kinds import whole
from message_store.format.java_numbers import LONG_MAX

_not_negative = whole(0, LONG_MAX)


@attrs.frozen
class LevelTimings:
    """How often a level is looked at, and its offsets are written down.

    A store is advanced by its user, so that it looks whenever it is told to; ``BROKER_TIMINGS`` are
    those of a broker, which polls. ``first_run_ms`` counts from the first ``advance`` and
    ``poll_ms`` from the last one that looked. ``persist_offsets_ms`` is the interval at which
    delayOffset.json is written, and ``clean_ms`` that at which old files are looked for.
    """

    first_run_ms: int = attrs.field(default=0, validator=_not_negative)
    poll_ms: int = attrs.field(default=0, validator=_not_negative)
    persist_offsets_ms: int = attrs.field(default=10_000, validator=_not_negative)
    clean_ms: int = attrs.field(default=10_000, validator=_not_negative)


BROKER_TIMINGS = LevelTimings(first_run_ms=1_000, poll_ms=100)
"""A second after the start, then every 100 ms."""


@attrs.frozen
class AsyncRules:
    """The limits of asynchronous delivery, by a broker's names.

    ``max_pending`` deliveries of a level may be under way. A level whose oldest one was sent again
    more than ``blocked_after`` times starts no new ones; a record that is missing then is given up
    after twice as many. Waiting times grow by 100 ms, from ``first_wait`` times that: 0 in 4.9, 1
    in 5.x. Each put that failed waits anew once it is the oldest. With 0 all of them follow at once
    when the disk takes the first one again; with 1 they come 100 ms apart.
    """

    max_pending: int = attrs.field(default=2_000, validator=whole(1, LONG_MAX))
    blocked_after: int = attrs.field(default=3, validator=_not_negative)
    first_wait: int = attrs.field(default=0, validator=_not_negative)


@attrs.frozen
class LevelRules:
    """What to do where a broker's way is not safe.

    - ``poison``: a record that can never be delivered (REAL_TOPIC or REAL_QID missing or wrong) is
      skipped and reported by ``check`` (``skip``; 5.x skips it silently), or blocks its
      level, as in 4.9 (``block``).
    - ``beyond_level``: a due time further away than the level's delay, which a clock set back or a
      shorter level leaves behind, is waited for (``wait``), or the message delivered at once, as
      brokers do (``deliver``).
    - ``out_of_turn``: an entry that is due earlier than one in front of it is delivered at its own
      time (``deliver``), or waits for that one, as with brokers (``wait``).
    - ``saved_offsets``: delayOffset.json names the first entry that is pending (``head``), or what
      a broker's table would hold (``broker``): a skipped entry does not move it. That table tells
      nothing of messages behind it: only with a broker's other ways of taking turns. Then an entry
      of another length than its record is skipped, which else is mended. In 5.x with
      ``async_delivery`` it passes a put that failed, as with brokers: who opens the store from the
      table alone, a broker or a migration, does not find that message.
    - ``on_table_change``: where messages wait with another delay than the level table has, opening
      is refused (``refuse``), or they keep their due times (``keep``), or levels that the table
      does not have are left alone, as brokers do (``broker``).
    - ``spare_waiting``: retention never takes a log file in which a message waits (brokers do).
    - ``async_delivery``: deliver as a broker with `enableScheduleAsyncDeliver`; a failing disk is
      then no error of ``advance``, but tried again.
    """

    poison: Literal["skip", "block"] = "skip"
    beyond_level: Literal["wait", "deliver"] = "wait"
    out_of_turn: Literal["deliver", "wait"] = "deliver"
    saved_offsets: Literal["head", "broker"] = "head"
    on_table_change: Literal["refuse", "keep", "broker"] = "refuse"
    spare_waiting: bool = True
    async_delivery: bool = False
    async_rules: AsyncRules = AsyncRules()
    timings: LevelTimings = LevelTimings()

    def __attrs_post_init__(self) -> None:
        in_line = self.out_of_turn == "wait" and self.beyond_level == "deliver"
        if self.saved_offsets == "broker" and not in_line:
            raise OptionsError(
                "saved_offsets='broker' needs out_of_turn='wait' and beyond_level='deliver':"
                " that table does not say which message in front was delivered"
            )

    @classmethod
    def of_broker(cls, version: str, *, async_delivery: bool = False) -> Self:
        """The rules of a broker: the one name for "faithful". ``StoreSettings.repeat_after_kill``
        belongs to it.

        ``version`` is a broker's, such as ``"4.9.7"`` or ``"5.5.0"``. What differs is ``poison``
        and ``async_rules.first_wait``.
        ``async_delivery`` is `enableScheduleAsyncDeliver`, which is off in brokers. Raises
        OptionsError for a version other than 4.9 and 5. RocketMQ: ScheduleMessageService (4.9.7,
        5.3.3).

        >>> LevelRules.of_broker("4.9.7").poison, LevelRules.of_broker("5.5.0").poison
        ('block', 'skip')
        """
        if not version.startswith(("4.9", "5.")):
            raise OptionsError(f"{version!r} is no version of 4.9 or 5")
        is_4_9 = version.startswith("4.9")
        return cls(
            poison="block" if is_4_9 else "skip",
            beyond_level="deliver",
            out_of_turn="wait",
            saved_offsets="broker",
            on_table_change="broker",
            spare_waiting=False,
            async_delivery=async_delivery,
            async_rules=AsyncRules(first_wait=0 if is_4_9 else 1),
            timings=BROKER_TIMINGS,
        )
