# SPDX-License-Identifier: Apache-2.0
"""The groups of one store: who asks again for a group gets the same one."""

from numbers import Integral

from consumer_groups.group import ConsumerGroup, Lag, Position, require_position
from consumer_groups.offset_files import OffsetFiles
from consumer_groups.progress_table import NextRecord, ProgressTable
from consumer_groups.received import DEFAULT_MAX_RETRIES
from consumer_groups.stores import GroupStore
from message_store.base.kinds import takes
from message_store.files.config_files import read_groups

_Options = tuple[Position, int | None, bool, bool]


class ConsumerGroups:
    """A companion of its store; whoever calls holds the store's lock.

    ``files`` and ``next_record`` are of a store that has files. Raises SourceError and TargetError
    for files that cannot be read or written.
    """

    def __init__(
        self,
        store: GroupStore,
        files: OffsetFiles | None = None,
        next_record: NextRecord | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self.table = ProgressTable(store, files, next_record)
        self._groups: dict[str, tuple[_Options, ConsumerGroup]] = {}

    def group(self, name: str, options: _Options) -> ConsumerGroup:
        """The group of this name. Raises ValueError where it is open with other options."""
        self.table.require_open()
        if name not in self._groups:
            self._groups[name] = options, self._made(name, options)
        known, group = self._groups[name]
        if known != options:
            raise ValueError(f"the group {name!r} is open with other options")
        return group

    def looked_at(self, name: str) -> ConsumerGroup:
        """The group of this name with whatever options it is open; one that is not stays so."""
        self.table.require_open()
        if name in self._groups:
            return self._groups[name][1]
        return self._made(name, ("first", None, False, False))

    def _made(self, name: str, options: _Options) -> ConsumerGroup:
        start, max_retries, is_ordered, is_synced = options
        return ConsumerGroup(
            self._store,
            self.table,
            name,
            start=start,
            max_retries=self._max_retries(name) if max_retries is None else max_retries,
            is_ordered=is_ordered,
            is_synced=is_synced,
        )

    def _max_retries(self, name: str) -> int:
        """What subscriptionGroup.json says, or RocketMQ's default."""
        files = self._files
        config = None if files is None else read_groups(files.root.path).get(name)
        return DEFAULT_MAX_RETRIES if config is None else config.max_retries

    def begin_flush(self) -> None:
        """See ``Companion``."""
        self.table.begin_flush()

    def flush(self, *, is_last: bool) -> None:
        """See ``Companion``."""
        self.table.flush(is_last=is_last)

    def let_go(self) -> None:
        """See ``Companion``."""
        self.table.let_go()


def groups_of(store: GroupStore) -> ConsumerGroups:
    """The groups of an open store. Raises StoreClosedError, SourceError and TargetError."""
    with store.lock:
        return store.companions.of(ConsumerGroups, lambda: _made_for(store))


def _made_for(store: GroupStore) -> ConsumerGroups:
    if (live := store.live) is None:
        return ConsumerGroups(store)
    return ConsumerGroups(store, OffsetFiles(live.root, live.dialect.config), live.log.record_from)


@takes(name=str, max_retries=Integral | None, ordered=bool, sync=bool)
def consumer_group(
    store: GroupStore,
    name: str,
    *,
    start: Position = "first",
    max_retries: int | None = None,
    ordered: bool = False,
    sync: bool = False,
) -> ConsumerGroup:
    """The consumer group ``name`` of an open store; the same one for all who ask.

    ``start`` is where it begins in a topic that it never read: ``"first"``, ``"last"``, ``AtMs`` of
    a time, or an offset for each queue. ``max_retries`` None takes what subscriptionGroup.json
    says, else 16. With ``ordered`` each queue is worked on in its order, one batch at a time. With
    ``sync`` each call that settles messages, or seeks, waits for the disk: what it did outlives a
    loss of power, and none repeats a message that was given back.

    Raises BadFieldError for a name that no group can have, ValueError where the group is open with
    other options, StoreClosedError, SourceError and TargetError.

    >>> from message_store import AfterMs, ManualClock, MemoryStore, Message
    >>> with MemoryStore(ManualClock(0)) as store:
    ...     receipt = store.schedule(Message("orders", b"cancel 42"), AfterMs(90_000))
    ...     deliveries = store.advance(receipt.promised_ms)
    ...     billing = consumer_group(store, "billing")
    ...     for message in billing.receive("orders"):
    ...         told = billing.ack(message)
    ...     billing.lag("orders").total
    0
    """
    require_position("start", start)
    with store.lock:
        return groups_of(store).group(name, (start, max_retries, ordered, sync))


def group_names(store: GroupStore) -> list[str]:
    """Every group that has read something in this store. Raises as ``consumer_group``."""
    with store.lock:
        return sorted(groups_of(store).table.group_names())


@takes(name=str)
def group_topics(store: GroupStore, name: str) -> dict[str, Lag]:
    """How far a group is behind in each topic that it has read. Raises as ``consumer_group``."""
    with store.lock:
        group = groups_of(store).looked_at(name)
        topics = {key.topic for key in groups_of(store).table.known_queues(name)}
        return {topic: group.lag(topic) for topic in sorted(topics)}
