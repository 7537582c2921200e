# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's ``TimerMessageStore`` (RIP-43) in plain Python: where to read how the wheel works.

Class, services, queues and fields have RocketMQ's names in snake case, and its order. The engine
``WheelStore`` is the fast form; ``docs/JAVA.md`` maps one to the other. Where no version is named,
a rule holds from 5.3.3 to 5.5.0. The way of a message::

    enqueue_get          reads rmq_sys_wheel_timer            -> enqueue_put_queue
    enqueue_put          ahead: timer log and slot; past:     -> dequeue_put_queue
    dequeue_get          a slot that is over, deletes first   -> dequeue_get_queue
    dequeue_get_message  reads records, drops the deleted     -> dequeue_put_queue
    dequeue_put_message  puts into the topic, or back into rmq_sys_wheel_timer: a roll

Each of Java's threads is a service here. It yields where the thread would wait, for so
many milliseconds; ``step`` goes on to the next such place. One thread can step all, in any order.
RocketMQ runs three of each of the last two, so its order within a slot is undefined. One of each
keeps it. The files are behind a protocol: ``reference/store.py`` binds it to a directory. How a
wheel recovers is ``reference/recovery.py``.
"""

from collections import deque
from collections.abc import Generator

import attrs

from message_store.base.clock import Clock
from message_store.base.errors import BadFieldError
from message_store.format import properties as names
from message_store.format.java_numbers import LONG_MAX, parse_long, string_hash
from message_store.format.message import StoredMessage
from timer_wheel.format.timer_log import FLAG_DEFAULT, FLAG_DELETE, FLAG_ROLL, TIMER_UNIT
from timer_wheel.format.wheel_math import floor_ms
from timer_wheel.reference.protocol import (
    PUT_NEED_RETRY,
    PUT_NO_RETRY,
    CountDownLatch,
    MessageExtBrokerInner,
    StoreFiles,
    TimerConfig,
    TimerRequest,
)
from timer_wheel.reference.recovery import recover

DEFAULT_CAPACITY = 1024
HOLD_MOMENT_MS = 50
NEVER_ENQUEUED = LONG_MAX  # the enqueue time of what got no unit, because its time was past
Waits = Generator[int, None, None]  # how long a thread waits, in milliseconds, time after time


class TimerMessageStore:
    """The timer wheel of one broker. ``load`` recovers it, ``start`` lets its services work.

    ``curr_read_time_ms`` is the slot to be read next, ``curr_write_time_ms`` now, floored to a
    slot. ``curr_queue_offset`` is the queue entry to be read next; the ``commit_`` forms are what
    the checkpoint may say. Only a master dequeues (``should_running_dequeue``).
    """

    def __init__(self, config: TimerConfig, clock: Clock, files: StoreFiles) -> None:
        self.config, self.clock, self.precision_ms = config, clock, config.precision_ms
        self.files, self.queue, self.message_store = files, files.queue, files.message_store
        self.timer_log, self.timer_wheel = files.timer_log, files.timer_wheel
        self._checkpoint_file, self.timer_metrics = files.checkpoint_file, files.timer_metrics
        self.timer_checkpoint = self._checkpoint_file.read()
        self.curr_read_time_ms = self.commit_read_time_ms = self.curr_write_time_ms = 0
        self.curr_queue_offset = self.commit_queue_offset = 0
        self.should_running_dequeue = False
        self._last_commit = (0, 0)
        self.enqueue_put_queue: deque[TimerRequest] = deque()
        self.dequeue_get_queue: deque[list[TimerRequest]] = deque()
        self.dequeue_put_queue: deque[TimerRequest] = deque()
        self.services: tuple[AbstractStateService, ...] = (
            TimerEnqueuePutService(self),  # moves the write time, as it did ten milliseconds before
            TimerEnqueueGetService(self),
            TimerDequeueGetService(self),
            TimerDequeueGetMessageService(self),
            TimerDequeuePutMessageService(self),
        )

    def load(self) -> None:
        """Recover: the timer log is the truth. Slots are revised from the file before the last
        flush on, and the last unit says where enqueueing goes on; the checkpoint only lowers that.
        """
        now_ms, known = self.clock.now_ms(), self.timer_checkpoint
        self.curr_read_time_ms, next_offset = recover(self.files, known, now_ms, self.precision_ms)
        self.commit_read_time_ms = self.curr_read_time_ms
        self.curr_queue_offset = self.commit_queue_offset = next_offset
        self.prepare_timer_check_point()

    def start(self, *, should_running_dequeue: bool = True) -> None:
        """Let the services work. With dequeueing off, what is overdue gets slots that are over."""
        self.should_running_dequeue = should_running_dequeue
        self.maybe_move_write_time()

    def maybe_move_write_time(self) -> None:
        """Let it be now; a clock that was set back does not move it back."""
        now_ms = floor_ms(self.clock.now_ms(), self.precision_ms)
        self.curr_write_time_ms = max(self.curr_write_time_ms, now_ms)

    def move_read_time(self) -> None:
        """A slot is done."""
        self.curr_read_time_ms += self.precision_ms
        self.commit_read_time_ms = self.curr_read_time_ms

    def enqueue(self) -> Generator[int, None, bool]:
        """Read the queue on; whether it had anything. A record that is not there is skipped.
        One without TIMER_OUT_MS is tried again for ever, and nothing behind it is enqueued.
        """
        offset = self.curr_queue_offset = max(self.curr_queue_offset, self.queue.min_offset)
        while (unit := self.queue.unit(self.curr_queue_offset)) is not None:
            try:
                message = self.message_store.get_message(*unit)
                if message is not None:
                    out_ms = parse_long(message.properties.get(names.TIMER_OUT_MS, ""))
                    now_ms, end = self.clock.now_ms(), self.curr_queue_offset + 1
                    request = TimerRequest(*unit, out_ms, now_ms, FLAG_DEFAULT, message, end)
                    while len(self.enqueue_put_queue) >= DEFAULT_CAPACITY:
                        yield 3_000
                    self.enqueue_put_queue.append(request)
            except BadFieldError:
                if not self.config.skip_unknown_error:
                    yield HOLD_MOMENT_MS
                    return False
            self.curr_queue_offset += 1
        return self.curr_queue_offset > offset

    def do_enqueue(self, request: TimerRequest, message: StoredMessage) -> bool:
        """Append a unit and put it into its slot. What lies a roll window ahead or more is parked:
        a window ahead, or half of one if less than a third would remain behind it.
        """
        write_time_ms, out_ms, magic = self.curr_write_time_ms, request.delay_time, FLAG_DEFAULT
        window, window_ms = self.config.roll_window_slots, self.config.window_ms
        if out_ms - write_time_ms >= window_ms:
            magic |= FLAG_ROLL
            is_near = out_ms - write_time_ms - window_ms < window // 3 * self.precision_ms
            out_ms = write_time_ms + (window // 2 if is_near else window) * self.precision_ms
        is_delete = names.TIMER_DELETE_UNIQUE_KEY in message.properties
        magic |= FLAG_DELETE if is_delete else 0
        slot = self.timer_wheel.get_slot(out_ms)
        unit = TIMER_UNIT.encode(
            size_bytes=TIMER_UNIT.size,
            previous_position=slot.last_pos,
            magic=magic,
            write_time_ms=write_time_ms,
            delay_ms=(out_ms - write_time_ms + 2**31) % 2**32 - 2**31,  # Java's (int)
            commit_log_offset=request.offset_py,
            record_size_bytes=request.size_py,
            topic_hash=string_hash(message.properties.get(names.REAL_TOPIC, "")),
            reserved=0,
        )
        ret = self.timer_log.append(unit)
        if ret == -1:
            return False
        first_pos = ret if slot.first_pos == -1 else slot.first_pos
        num = slot.num - 1 if is_delete else slot.num + 1
        # A slot of another time with the same index is out of reach from now on.
        self.timer_wheel.put_slot(out_ms, first_pos, ret, num, slot.magic)
        self.timer_metrics.add_and_get(message, -1 if is_delete else 1)
        return True

    def dequeue(self) -> Generator[int, None, int]:
        """Take one slot that is over: -1 where none is, 0 for an empty one, else 1. Its delete
        markers go first, the others once all markers were read. The read time moves when all is
        done: after a kill the whole slot is delivered again.
        """
        if not self.should_running_dequeue or self.curr_read_time_ms >= self.curr_write_time_ms:
            return -1
        slot = self.timer_wheel.get_slot(self.curr_read_time_ms)
        if slot.time_ms == -1:
            self.move_read_time()
            return 0
        delete_list: set[str] = set()
        normals, deletes, position = deque[TimerRequest](), deque[TimerRequest](), slot.last_pos
        while position != -1 and (unit := self.timer_log.get_timer_message(position)) is not None:
            request = TimerRequest.of_unit(unit, delete_list)
            if request.is_delete and not request.is_roll:
                deletes.append(request)
            else:  # the chain leads from the newest to the oldest, which goes first
                normals.appendleft(request)
            position = unit["previous_position"]
        for stack in (deletes, normals):  # Java splits them into lists of 2,000, for its threads
            latch = CountDownLatch(len(stack))
            for request in stack:
                request.set_latch(latch)
            self.dequeue_get_queue.append([*stack])
            yield from self.check_dequeue_latch(latch)
        self.move_read_time()
        return 1

    def check_dequeue_latch(self, latch: CountDownLatch) -> Waits:
        """Wait until a latch is down, or nobody is at work: two looks, a second apart, at queues
        and services. (5.4 and later: no longer after the role changed.)
        """
        check_num = 0
        while latch.count > 0 and check_num < 2:
            yield 1_000
            is_busy = any(service.is_running for service in self.services)
            check_num += not (is_busy or self.dequeue_get_queue or self.dequeue_put_queue)

    def convert(self, message: StoredMessage, request: TimerRequest) -> MessageExtBrokerInner:
        """The message as it is put. REAL_TOPIC, REAL_QID and TIMER_OUT_MS stay in its record: the
        last gives a roll its slot. Raises BadFieldError for one that can go nowhere.
        """
        stamps = [(names.TIMER_ENQUEUE_MS, str(request.enqueue_time))]
        stamps.append((names.TIMER_DEQUEUE_MS, str(self.clock.now_ms())))
        if request.is_roll:
            times = parse_long(message.properties.get(names.TIMER_ROLL_TIMES, "0")) + 1
            stamps.append((names.TIMER_ROLL_TIMES, str(times)))
            where = message.topic, message.queue_id
        else:
            queue_id = parse_long(message.properties.get(names.REAL_QUEUE_ID, ""))
            where = message.properties.get(names.REAL_TOPIC, ""), queue_id
            if not where[0]:
                raise BadFieldError("no REAL_TOPIC", offset=message.commit_log_offset)
        return MessageExtBrokerInner(message, *where, tuple(stamps), request.is_roll)

    def do_put(self, message: MessageExtBrokerInner) -> int:
        """Put it: done, to be tried again, or in vain. A delete marker goes nowhere but round."""
        if not message.is_roll and names.TIMER_DELETE_UNIQUE_KEY in message.source.properties:
            return PUT_NO_RETRY
        status = self.message_store.put_message(message)
        return status.outcome(skips_unknown=self.config.skip_unknown_error)

    def build_delete_key(self, real_topic: str, unique_key: str) -> str:
        """What a delete marker has to say: topic and key (5.3.2, 5.3.3), else the key alone."""
        by_topic = self.config.dialect.topic_in_delete_key
        return f"{real_topic}+{unique_key}" if by_topic else unique_key

    def prepare_timer_check_point(self) -> None:
        """Say how far wheel and queue are. The flush position is that of the round before."""
        known, commit = self.timer_checkpoint, (self.commit_read_time_ms, self.commit_queue_offset)
        if self.should_running_dequeue:
            known = attrs.evolve(known, master_queue_offset=self.commit_queue_offset)
            if commit != self._last_commit:
                self._last_commit, now_ms = commit, self.clock.now_ms()
                known = attrs.evolve(known, timestamp_ms=now_ms, counter=known.counter + 1)
        self.timer_checkpoint = attrs.evolve(
            known,
            flush_position=self.timer_log.flushed_where,
            last_read_time_ms=self.commit_read_time_ms,
            last_queue_offset=min(self.commit_queue_offset, known.master_queue_offset),
        )

    def flush(self) -> None:
        """A round of TimerFlushService, which comes once a second (timerFlushIntervalMs)."""
        self.prepare_timer_check_point()
        self.timer_log.flush()
        self.timer_wheel.flush()
        self._checkpoint_file.write(self.timer_checkpoint)

    def shutdown(self) -> None:
        """Write the checkpoint, not the wheel: ``load`` repairs that. (5.4: the timer log last.)"""
        self.prepare_timer_check_point()
        self._checkpoint_file.write(self.timer_checkpoint)
        self.timer_log.flush()


# --- the five services ----------------------------------------------------------------------------


class AbstractStateService:
    """One thread of Java's. ``is_running`` says whether it has work."""

    def __init__(self, outer: TimerMessageStore) -> None:
        self.outer, self.is_running = outer, False
        self.wait_ms = 100 * outer.precision_ms // 1000
        self._waits = self._run()

    def _run(self) -> Waits:
        raise NotImplementedError

    def step(self) -> int:
        """Go on to where it waits next; for how many milliseconds, 0 where it goes on at once."""
        return next(self._waits)


class TimerEnqueueGetService(AbstractStateService):
    """Reads the timer queue on, ten times a slot."""

    def _run(self) -> Waits:
        while True:
            yield 0 if (yield from self.outer.enqueue()) else self.wait_ms


class TimerEnqueuePutService(AbstractStateService):
    """Puts requests onto the wheel, and moves the write time."""

    def _run(self) -> Waits:
        while True:
            before, queue = self.outer.curr_queue_offset, self.outer.enqueue_put_queue
            requests = [queue.popleft() for _ in range(min(len(queue), 11))]
            if requests:
                yield from self._put(requests)
            self.outer.commit_queue_offset = requests[-1].queue_offset if requests else before
            self.outer.maybe_move_write_time()
            yield 0 if requests else 10

    def _put(self, requests: list[TimerRequest]) -> Waits:
        """Put a group. If one fails all are tried again, and the others get second units."""
        while True:
            latch = CountDownLatch(len(requests))
            for request in requests:
                request.set_latch(latch)
                self.put_message_to_timer_wheel(request)
            yield from self.outer.check_dequeue_latch(latch)
            if all(request.succ for request in requests):
                return
            yield HOLD_MOMENT_MS

    def put_message_to_timer_wheel(self, request: TimerRequest) -> None:
        """Place one; or, where its slot is over, hand it straight to be put."""
        outer = self.outer
        if outer.should_running_dequeue and request.delay_time < outer.curr_write_time_ms:
            request.set_enqueue_time(NEVER_ENQUEUED)
            outer.dequeue_put_queue.append(request)
        elif request.msg is not None:
            is_done = outer.do_enqueue(request, request.msg)
            request.idempotent_release(succ=is_done or outer.config.skip_unknown_error)


class TimerDequeueGetService(AbstractStateService):
    """Takes slots that are over, one after the other."""

    def _run(self) -> Waits:
        while True:
            yield self.wait_ms if (yield from self.outer.dequeue()) == -1 else 0


class TimerDequeueGetMessageService(AbstractStateService):
    """Reads the records of a slot: notes what is deleted, and drops it."""

    def _run(self) -> Waits:
        while True:
            self.is_running = False
            while not self.outer.dequeue_get_queue:
                yield self.wait_ms
            self.is_running = True
            for request in self.outer.dequeue_get_queue.popleft():
                while not self._get(request):
                    yield HOLD_MOMENT_MS
            yield 0

    def _get(self, request: TimerRequest) -> bool:
        """Deal with one; False where it is to be tried again."""
        outer, message = self.outer, None
        try:
            message = outer.message_store.get_message(request.offset_py, request.size_py)
        except BadFieldError:
            if not outer.config.skip_unknown_error:
                return False
        properties = {} if message is None else message.properties
        topic, key = properties.get(names.REAL_TOPIC, "null"), properties.get(names.UNIQUE_KEY)
        if message is None:
            request.idempotent_release()  # lost silently
        elif request.is_delete and not request.is_roll:
            if target := properties.get(names.TIMER_DELETE_UNIQUE_KEY):
                request.delete_list.add(target)
            request.idempotent_release()
        elif key is not None and outer.build_delete_key(topic, key) in request.delete_list:
            request.idempotent_release()
        else:
            request.set_msg(message)
            outer.dequeue_put_queue.append(request)
        return True


class TimerDequeuePutMessageService(AbstractStateService):
    """Puts messages where they go. One without REAL_TOPIC or REAL_QID is tried again for ever: the
    wheel stands still at its slot. One that is refused three times is discarded.
    """

    def _run(self) -> Waits:
        while True:
            self.is_running = False
            while not self.outer.dequeue_put_queue:
                yield 10
            self.is_running = True
            request = self.outer.dequeue_put_queue.popleft()
            if request.msg is not None:
                yield from self._put(request, request.msg)
            request.idempotent_release()
            yield 0

    def _put(self, request: TimerRequest, message: StoredMessage) -> Waits:
        outer = self.outer
        if request.enqueue_time != NEVER_ENQUEUED:
            outer.timer_metrics.add_and_get(message, -1)
        while True:
            try:
                converted = outer.convert(message, request)
                break
            except BadFieldError:
                if outer.config.skip_unknown_error:
                    return
                yield HOLD_MOMENT_MS
        tries = 1  # 5.3.1 tried again for ever where the service was not available
        while outer.do_put(converted) == PUT_NEED_RETRY:
            if tries == 3 and not outer.config.retry_until_success:
                return
            tries += 1
            yield 5 * self.wait_ms
