# SPDX-License-Identifier: Apache-2.0
"""The process that is killed: appends to a store without end, and says how many messages are in."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from message_store.format.message import StoredMessage
from message_store.format.properties import LEVEL_TOPIC
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from tests.message_store.live_workload import append, append_rows, stored

SETTINGS = StoreSettings(commit_log_file_bytes=1 << 18, queue_file_bytes=20 * 1_000)


def message(number: int) -> StoredMessage:
    """The message of this number, whoever asks."""
    chance = random.Random(number)
    body = b"%d " % number + bytes([65 + number % 26]) * chance.choice([0, 100, 1_000, 9_000])
    if chance.random() < 0.5:
        level = chance.randrange(1, 19)
        return stored(body, topic=LEVEL_TOPIC, queue_id=level - 1, level=level)
    return stored(body, queue_id=chance.randrange(3), tags=f"tag{number % 7}")


def main(path: Path, first: int) -> None:
    """Append, from the message of number ``first`` on, one by one and in rows."""
    store = LiveStore.open(path, settings=SETTINGS)
    done = first
    while True:
        count = random.choice([1, 1, 1, 1, 30, 200])
        fresh = [message(number) for number in range(done, done + count)]
        append(store, fresh[0]) if count == 1 else append_rows(store, fresh)
        done += count
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
