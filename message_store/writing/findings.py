# SPDX-License-Identifier: Apache-2.0
"""The findings about log, queues and retention of an open store; engines add their own. Warns of
messages in other engines.
"""

import warnings
from collections.abc import Iterator

from message_store.base.errors import OtherEngineWarning
from message_store.base.printable import counted
from message_store.files.segments import segment_name
from message_store.format.properties import LEVEL_TOPIC, TIME_INDEX_TOPIC, TIMER_TOPIC
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import found_error, found_warning
from message_store.writing.store import LiveStore

_ENTRIES = ("entry", "entries")


def queue_findings(store: LiveStore) -> Iterator[Finding]:
    """The entries that queues lacked when the store was opened, and their recovery."""
    for (topic, queue_id), count in store.losses.entries.items():
        rebuilt = store.losses.rebuilt.get((topic, queue_id), 0)
        where = f"consumequeue {topic}/{queue_id}"
        if rebuilt:
            yield found_warning(
                where,
                f"{counted(count, *_ENTRIES)} that a flush had written were missing at its end",
                f"{counted(rebuilt, 'was', 'were')} rebuilt from the log",
                "find out what removed or overwrote the queue's files",
            )
        if lost := count - rebuilt:
            yield found_error(
                where,
                f"{counted(lost, *_ENTRIES)} that a flush had written are missing at its end, and"
                " the log has no records for them",
                "consumers do not get the messages to which they led",
                "find out what was removed; take log and queues from a backup",
            )
    for start in store.recovery.lost_files:
        yield found_error(
            f"commitlog/{segment_name(start)}",
            "it was empty when the store was opened, and the log goes on behind it",
            "what was scheduled there is lost, what was delivered or cancelled there may be"
            " delivered again",
            "nothing after a loss of power; else schedule again what is still wanted",
        )
    if saved := store.recovery.saved:
        yield found_warning(
            "commitlog",
            f"whole records lay behind a damaged one, where the log ended at {store.recovery.end}"
            " when the store was opened",
            f"they were cut off, as a broker does; their bytes are in {saved}",
            "nothing after a loss of power, or a kill while a batch was being stored: nobody was"
            " told that they are durable; else take the log from a backup, or send the messages"
            " again",
        )
    recovery, rebuilt = store.recovery, sum(store.losses.rebuilt.values())
    made = recovery.repaired + max(0, recovery.dispatched - rebuilt) if store.was_clean else 0
    if made:
        yield found_warning(
            "consumequeue",
            f"{counted(made, 'entry was', 'entries were')} missing or damaged, though the store had"
            " been closed",
            "they were made again from the log; of cancelled messages, they may be delivered",
            "find out what removed or damaged the files",
        )
    if cut := store.recovery.cut:
        yield found_warning(
            "consumequeue",
            f"{counted(cut, 'entry', 'entries')} told of records that the log did not have when"
            " the store was opened",
            "they were taken away, as a broker does",
            "nothing after a loss of power; else find out what was removed from the log",
        )
    yield from _offset_findings(store)


def _offset_findings(store: LiveStore) -> Iterator[Finding]:
    """The consumer offsets that were lowered."""
    for one in store.recovery.lowered:
        yield found_warning(
            f"config/consumerOffset.json {one.topic}/{one.queue_id}",
            f"group {one.group} had read up to {one.offset:,}, and the queue ended at {one.end:,}"
            " when the store was opened",
            f"the group continues at {one.end:,}: what comes there is new",
            "find out what was removed from the log, or how old the log of this store is",
        )


def floor_findings(store: LiveStore) -> Iterator[Finding]:
    """What is wrong with log, queues and retention, whatever stands on them."""
    yield from queue_findings(store)
    if store.retention.kept is not None:
        yield found_warning(
            "retention",
            f"an old file stays: {store.retention.kept}",
            "the disk fills up; messages come all the same",
            "find out what keeps it; it is tried again every minute",
        )


def log_finding(log_bytes: int) -> Finding:
    """The loss of the end of the log."""
    return found_error(
        "commitlog",
        f"its last {log_bytes:,} bytes are gone since the last flush",
        "what was stored there is lost",
        "find out what was removed, and restore a backup if there is one",
    )


def undeliverable(commit_log_offset: int, why: object, effect: str) -> Finding:
    """A record that was due and can go nowhere; ``effect`` is what a broker does about it."""
    return found_warning(
        f"commit log {commit_log_offset}",
        f"a message that cannot be delivered: {why}",
        effect,
        "look at the record; schedule its message again if it is still wanted",
    )


_ENGINE_OF_TOPIC = {
    LEVEL_TOPIC: "the levels",
    TIMER_TOPIC: "a wheel",
    TIME_INDEX_TOPIC: "a time index",
}


def warn_of_other_engines(live: LiveStore, own: str) -> None:
    """Issue an OtherEngineWarning where nothing was ever put into ``own``, the topic of the engine
    that opens a store, and another engine's has messages, which it leaves alone.
    """
    used = [topic for topic in _ENGINE_OF_TOPIC if live.queues.has_entries(topic)]
    if used and own not in used:
        named = " and ".join(_ENGINE_OF_TOPIC[topic] for topic in used)
        warnings.warn(
            f"{live.root.path}: messages may wait in {named}, and this engine leaves them there;"
            " `delaywheel pending` lists them, `delaywheel inspect` says whose they are",
            OtherEngineWarning,
            stacklevel=4,
        )
