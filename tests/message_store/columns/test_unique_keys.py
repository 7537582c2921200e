# SPDX-License-Identifier: Apache-2.0
"""No two messages get the same key: not in threads, not in forks, not in columns."""

import itertools
import re
import subprocess
import sys
import threading

import pytest

from message_store.columns.unique_keys import new_unique_key, new_unique_keys

FORKING = """
import os, sys
from message_store.columns.unique_keys import new_unique_key, new_unique_keys

print(new_unique_key(), flush=True)
for _ in range(2):
    if not os.fork():
        print(new_unique_key(), *map(bytes.decode, new_unique_keys(2)), flush=True)
        os._exit(0)
    os.wait()
print(new_unique_key())
"""


def test_a_key_has_the_shape_that_clients_give_it() -> None:
    keys = [new_unique_key(), *map(bytes.decode, new_unique_keys(2))]
    assert all(re.fullmatch("[0-9A-F]{32}", key) for key in keys)


@pytest.mark.parametrize("count", [0, 1, 16, 257, 70_000])
def test_a_column_of_keys_ascends_and_shares_nothing_with_another(count: int) -> None:
    keys = list(new_unique_keys(count))
    assert len(keys) == count
    assert all(earlier < later for earlier, later in itertools.pairwise(keys))
    assert not set(keys) & set(new_unique_keys(count))


def test_threads_never_get_the_same_key() -> None:
    found: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(
            target=lambda keys: keys.extend(new_unique_key() for _ in range(5_000)), args=(keys,)
        )
        for keys in found
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set().union(*found)) == 20_000


@pytest.mark.check
def test_a_fork_does_not_repeat_its_parents_keys() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=60
    )
    keys = run.stdout.split()
    assert len(keys) == len(set(keys)) == 8
    own = [keys[0], keys[-1]]
    assert own[0][:20] == own[1][:20]
    assert len({key[:20] for key in keys}) == 5
