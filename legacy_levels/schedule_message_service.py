# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's ScheduleMessageService in plain Python: its names, its order, one message at a time.

Read this to understand delay levels; ``LevelStore`` does the same in bulk, by safer rules. Sources:
4.9.7 and 5.3.3, which 5.4 and 5.5 follow; "4.9" and "5.x" mark where they differ. A task that would
sleep in its thread is run again later. Left out: queue extensions, metrics, remote escape.
"""

import enum
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import attrs

from legacy_levels.delay_offsets import DataVersion, encode_delay_offsets
from legacy_levels.reference.protocol import BrokerStore, CqUnit, MessageStoreConfig
from message_store.base.errors import BadFieldError, FormatError
from message_store.format.java_numbers import parse_long
from message_store.format.message import StoredMessage
from message_store.format.properties import HALF_TOPIC, REAL_QUEUE_ID, REAL_TOPIC

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class ScheduleMessageService:
    """All levels of a broker. ``tasks``: what will run, and from which nanoTime on (in ms)."""

    def __init__(self, store: BrokerStore, config: MessageStoreConfig) -> None:
        self.store, self.config = store, config
        self.delay_level_table: dict[int, int] = {}
        self.offset_table: dict[int, int] = {}  # what delayOffset.json will say
        self.deliver_pending_table: dict[int, deque[PutResultProcess]] = {}
        self.max_delay_level = self.version_change_counter = self.next_persist_ms = 0
        self.data_version = DataVersion(timestamp_ms=store.now_ms())
        self.started = False
        self.tasks: list[tuple[int, Callable[[], None]]] = []

    def load(self) -> bool:
        """Read offsets and level table; False where a broker does not start."""
        if (found := self.store.load_config()) is None:
            return False
        self.offset_table.update(found.offsets)  # levels that it does not name keep theirs
        self.data_version = found.data_version or self.data_version
        return self.parse_delay_level() and self.correct_delay_offset()

    def encode(self) -> bytes:
        """The text of `delayOffset.json`: in 5.x with a data version, in 4.9 without."""
        return encode_delay_offsets(self.offset_table, self.config.dialect, self.data_version)

    def parse_delay_level(self) -> bool:
        """Read `messageDelayLevel`; levels before an error stay, and the answer is False."""
        for level, value in enumerate(self.config.message_delay_level.rstrip(" ").split(" "), 1):
            self.max_delay_level = max(self.max_delay_level, level)
            try:
                self.delay_level_table[level] = _UNIT_MS[value[-1:]] * parse_long(value[:-1])
            except (KeyError, FormatError):
                return False
            self.deliver_pending_table[level] = deque()
        return True

    def correct_delay_offset(self) -> bool:
        """Move offsets into their queues; 4.9 before queues are rebuilt after a crash."""
        for level in self.delay_level_table.keys() & self.offset_table.keys():
            cq = self.store.find_consume_queue(level)
            offset = max(self.offset_table[level], cq.min_offset)
            self.offset_table[level] = min(offset, cq.max_offset)
        return True

    def start(self) -> None:
        """Load once more, and begin the tasks of each level."""
        self.started = self.load()
        self.next_persist_ms = self.store.nano_time_ms() + 10_000
        for level in self.delay_level_table:
            if self.config.enable_schedule_async_deliver:
                self.schedule(HandlePutResultTask(self, level).run, self.config.first_delay_time)
            task = DeliverDelayedMessageTimerTask(self, level, self.offset_table.get(level, 0))
            self.schedule(task.run, self.config.first_delay_time)

    def shutdown(self) -> None:
        """Stop, and persist; offsets of puts that are pending are not saved."""
        self.started = False
        self.persist()

    def persist(self) -> None:
        """Write `delayOffset.json`. After a kill, what was delivered since is repeated."""
        self.store.persist_config(self.encode())

    def schedule(self, task: Callable[[], None], delay: int) -> None:
        """Let a task run ``delay`` ms from now."""
        self.tasks.append((self.store.nano_time_ms() + delay, task))

    def run_due_tasks(self) -> None:
        """Run each task once whose time has come, if started. In Java each level has threads."""
        now = self.store.nano_time_ms()
        due = sorted((each for each in self.tasks if each[0] <= now), key=lambda each: each[0])
        self.tasks = [each for each in self.tasks if each[0] > now]
        for _, task in due if self.started else ():
            task()
        if self.started and now >= self.next_persist_ms:
            self.persist()
            self.next_persist_ms = now + self.config.flush_delay_offset_interval

    def update_offset(self, delay_level: int, offset: int) -> None:
        """Note how far a level is; in 5.x every 200th note makes a new data version."""
        self.offset_table[delay_level] = offset
        self.version_change_counter += 1
        if self.version_change_counter % self.config.delay_offset_update_version_step == 0:
            state, counter = self.data_version.state_version, self.data_version.counter + 1
            self.data_version = DataVersion(state, self.store.now_ms(), counter)

    def message_timeup(self, message: StoredMessage) -> StoredMessage:
        """The message for its own topic. Raises BadFieldError if its record does not name one.
        All properties are kept, but the put does not see DELAY, in 5.x nor those of timers.
        """
        topic = message.properties.get(REAL_TOPIC)
        queue_id = parse_long(message.properties.get(REAL_QUEUE_ID, ""))
        if topic is None or not -(2**31) <= queue_id < 2**31:
            raise BadFieldError("no real topic or queue", offset=message.commit_log_offset)
        return attrs.evolve(message, topic=topic, queue_id=queue_id, prepared_transaction_offset=0)


@attrs.frozen
class DeliverDelayedMessageTimerTask:
    """Delivers what is due in a level from ``offset`` on, and leaves a task that goes on."""

    service: ScheduleMessageService
    delay_level: int
    offset: int

    def correct_deliver_timestamp(self, now: int, deliver_timestamp: int) -> int:
        """A time farther away than the level's delay is now: that message will be early."""
        is_too_far = deliver_timestamp > now + self.service.delay_level_table[self.delay_level]
        return now if is_too_far else deliver_timestamp

    def run(self) -> None:
        """Go on in 100 ms where this run ended."""
        task = attrs.evolve(self, offset=self.execute_on_timeup())
        self.service.schedule(task.run, self.service.config.delay_for_a_while)

    def execute_on_timeup(self) -> int:
        """Go through one file of the queue, in order; the queue offset where it has to go on."""
        service, store, config = self.service, self.service.store, self.service.config
        cq = store.find_consume_queue(self.delay_level)
        units = cq.get_index_buffer(self.offset)
        if not units:  # outside the queue: to its nearer end
            return min(max(self.offset, cq.min_offset), cq.max_offset)
        deliver = self.async_deliver if config.enable_schedule_async_deliver else self.sync_deliver
        try:
            for curr_offset, unit in enumerate(units, self.offset):
                # If this one raises, 4.9 comes back to it for ever, and 5.x skips it.
                next_offset = curr_offset if config.is_4_9 else curr_offset + 1
                now = store.now_ms()
                if self.correct_deliver_timestamp(now, unit.tags_code) > now:
                    if not config.is_4_9:  # even if puts before it are still pending
                        service.update_offset(self.delay_level, curr_offset)
                    return curr_offset
                message = store.look_message_by_offset(unit.pos, unit.size)
                msg_inner = None if message is None else service.message_timeup(message)
                if msg_inner is None or msg_inner.topic == HALF_TOPIC:
                    continue  # skipped or dropped: the table learns of it with the next one
                if not deliver(msg_inner, PutResultProcess(service, curr_offset, unit)):
                    return curr_offset
        except FormatError:
            return next_offset
        return self.offset + len(units)

    def sync_deliver(self, msg_inner: StoredMessage, process: "PutResultProcess") -> bool:
        """Put it and wait; only a stored message moves the level's offset."""
        future = process.deliver_message(msg_inner)
        if is_stored := (future.exception() is None and future.result()):
            self.service.update_offset(self.delay_level, process.offset + 1)
        return is_stored

    def async_deliver(self, msg_inner: StoredMessage, process: "PutResultProcess") -> bool:
        """Put it without waiting, unless too many are pending or the oldest keeps failing."""
        pending, config = self.service.deliver_pending_table[self.delay_level], self.service.config
        resends = pending[0].resend_count if pending else 0
        is_blocked = resends > config.schedule_async_deliver_max_resend_num2_blocked
        if is_blocked or len(pending) > config.schedule_async_deliver_max_pending_limit:
            return False
        process.deliver_message(msg_inner)
        pending.append(process)
        return True


class ProcessStatus(enum.Enum):
    """RUNNING: no answer yet. EXCEPTION: to be tried once more. SKIP: given up."""

    RUNNING, SUCCESS, EXCEPTION, SKIP = range(4)


@attrs.define(eq=False)
class PutResultProcess:
    """One put, and what became of it; ``offset`` is the queue offset of its entry."""

    service: ScheduleMessageService
    offset: int
    unit: CqUnit
    resend_count: int = 0
    status: ProcessStatus = ProcessStatus.RUNNING
    wakes_ms: int | None = None

    def deliver_message(self, msg_inner: StoredMessage) -> Future[bool]:
        """Put it into its topic, and note the answer when it comes."""
        future = self.service.store.async_put_message(msg_inner)
        future.add_done_callback(self.handle_result)
        return future

    def handle_result(self, future: Future[bool]) -> None:
        """The answer has come. RocketMQ: onSuccess, onException."""
        is_stored = future.exception() is None and future.result()
        self.status = ProcessStatus.SUCCESS if is_stored else ProcessStatus.EXCEPTION

    def do_resend(self) -> bool:
        """Put it again after a wait that grows by 100 ms up to a minute; False while it waits."""
        config, now = self.service.config, self.service.store.nano_time_ms()
        if self.wakes_ms is None:
            steps = self.resend_count + (0 if config.is_4_9 else 1)  # 5.x: from 100 ms on
            self.wakes_ms, self.resend_count = now + min(100 * steps, 60_000), self.resend_count + 1
        if now < self.wakes_ms:
            return False
        self.wakes_ms = None
        message = self.service.store.look_message_by_offset(self.unit.pos, self.unit.size)
        if message is not None:
            self.deliver_message(self.service.message_timeup(message))
        elif self.resend_count > 2 * config.schedule_async_deliver_max_resend_num2_blocked:
            self.status = ProcessStatus.SKIP
        return True


@attrs.frozen
class HandlePutResultTask:
    """Takes finished puts of a level from the front of their queue, every 10 ms."""

    service: ScheduleMessageService
    delay_level: int

    def run(self) -> None:
        """Save offsets of stored messages, put failed ones again, drop those that are given up."""
        pending = self.service.deliver_pending_table[self.delay_level]
        while pending and (process := pending[0]).status is not ProcessStatus.RUNNING:  # 4.9: spins
            if process.status is ProcessStatus.EXCEPTION:
                if process.do_resend():
                    continue
                break
            if process.status is ProcessStatus.SUCCESS:  # SKIP saves no offset
                self.service.update_offset(self.delay_level, process.offset + 1)
            pending.popleft()
        self.service.schedule(self.run, self.service.config.delay_for_a_sleep)
