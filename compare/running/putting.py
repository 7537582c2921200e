# SPDX-License-Identifier: Apache-2.0
"""Puts a workload's messages into a store: few singly, many as a batch; notes refusals."""

from collections.abc import Iterator

import attrs

from compare.running.engine_watch import EngineWatch
from compare.running.observation import NOT_TAKEN
from compare.workloads.workload import MessageMaker
from message_store.base.clock import stopwatch_s
from message_store.base.errors import UnsupportedDelayError
from message_store.format.message import Message
from message_store.interface.delay_store import AtMs, DelayStore

PUT_AT_ONCE = 50_000
MOST_PUT_ONE_BY_ONE = 8
"""Up to so many are put one by one: a batch has its own price."""
_AHEAD = 1_024


@attrs.define(eq=False)
class Putter:
    """Puts messages in order; ``next`` is the first that is still to be put. Their making is not
    timed.
    """

    maker: MessageMaker
    watch: EngineWatch
    next: int = 0
    _ahead: list[Message] = attrs.field(factory=list)
    _ahead_first: int = 0

    def put(self, store: DelayStore, last: int, *, one_by_one: bool = False) -> int | None:
        """Put all messages up to number ``last``; the earliest promise of those that were taken.
        With ``one_by_one`` there are no batches, however many are owed.

        Raises what the store raises, but for what it cannot keep: that is not taken.
        """
        begun = self.next
        while self.next < last:
            until = min(last, self.next + PUT_AT_ONCE)
            is_few = one_by_one or until - self.next <= MOST_PUT_ONE_BY_ONE
            if is_few or not self._put_batch(store, self.next, until):
                self._put_singly(store, self.next, until)
            self.next = until
            if last - begun > PUT_AT_ONCE:
                self.watch.say("putting", until - begun, last - begun)
        promised_ms = self.watch.promised_ms[begun:last]
        promised_ms = promised_ms[promised_ms != NOT_TAKEN]
        return int(promised_ms.min()) if len(promised_ms) else None

    def _put_batch(self, store: DelayStore, first: int, last: int) -> bool:
        """Whether the store took them as a batch: one that it cannot keep refuses all."""
        batch = self.maker.batch(first, last)
        due_ms = self.watch.workload.due_ms[first:last]
        try:
            with self.watch.puts:
                receipt = store.schedule_batch(batch, due_ms)
        except UnsupportedDelayError:
            return False
        self.watch.took(first, receipt.promised_ms, int(receipt.promised_ms.max()))
        return True

    def _put_singly(self, store: DelayStore, first: int, last: int) -> None:
        due_ms = self.watch.workload.due_ms[first:last].tolist()
        schedule, puts = store.schedule, self.watch.puts
        promised_ms: list[int] = []
        try:
            for message, due in zip(self._messages(first, last), due_ms, strict=True):
                self.next = first + len(promised_ms)
                started_s = stopwatch_s()
                try:
                    receipt = schedule(message, AtMs(due))
                except UnsupportedDelayError:
                    promised_ms.append(NOT_TAKEN)
                else:
                    promised_ms.append(receipt.promised_ms)
                finally:
                    puts.took(started_s)
        finally:  # a kill ends it with some of them taken
            self.watch.took_singly(first, promised_ms)

    def _messages(self, first: int, last: int) -> Iterator[Message]:
        """These messages; they are made some at a time."""
        while first < last:
            place = first - self._ahead_first
            if not 0 <= place < len(self._ahead):
                most = min(first + _AHEAD, len(self.watch.workload))
                self._ahead, self._ahead_first, place = self.maker.singly(first, most), first, 0
            some = self._ahead[place : place + last - first]
            yield from some
            first += len(some)
