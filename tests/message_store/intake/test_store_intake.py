# SPDX-License-Identifier: Apache-2.0
"""Records that wait go into a log on disk, alone and as columns, over the ends of its files."""

from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from message_store.columns.message_batch import MessageBatch
from message_store.format.dialect import Dialect
from message_store.format.message import Message
from message_store.format.properties import LEVEL_TOPIC
from message_store.intake.batch import draft_batch
from message_store.intake.records import RecordForm
from message_store.writing.settings import StoreSettings
from message_store.writing.store import LiveStore
from tests.message_store.drafts import Draft, draft

NOW_MS = 1_793_000_000_123
SETTINGS = StoreSettings(commit_log_file_bytes=8_192)
MESSAGES = [
    Message(
        "orders", b"body %d " % number * number, tags=f"tag{number % 3}", unique_key=f"K{number}"
    )
    for number in range(100)
]


def _placed(made: Draft, row: int, position: int) -> bytes:
    return made.record(row % 4, row, position, NOW_MS)


@pytest.mark.parametrize("dialect", [Dialect.ROCKETMQ_4_9, Dialect.ROCKETMQ_5_5])
def test_a_log_is_the_same_however_its_records_came_into_it(
    tmp_path: Path, dialect: Dialect
) -> None:
    form = RecordForm.of(dialect, SETTINGS)
    levels = np.arange(100) % 18 + 1
    with closing(LiveStore.open(tmp_path / "single", dialect=dialect, settings=SETTINGS)) as store:
        for row, message in enumerate(MESSAGES):
            level = int(levels[row])
            made = draft(message, system_topic=LEVEL_TOPIC, delay_level=level, form=form)
            store.log.append(made.size_bytes, partial(_placed, made, row))
    with closing(LiveStore.open(tmp_path / "columns", dialect=dialect, settings=SETTINGS)) as store:
        batch = draft_batch(
            MessageBatch.of(MESSAGES), system_topic=LEVEL_TOPIC, delay_levels=levels, form=form
        )
        fill = batch.bind(np.arange(100) % 4, np.arange(100), NOW_MS)
        positions = store.log.append_rows(batch.sizes, fill)
        assert len(set((positions // SETTINGS.commit_log_file_bytes).tolist())) > 4
        stored = store.log.record(int(positions[70]), int(batch.sizes[70]))
        assert (stored.body, stored.unique_key) == (MESSAGES[70].body, "K70")
    single, columns = (
        [path.read_bytes() for path in sorted((tmp_path / name / "commitlog").iterdir())]
        for name in ("single", "columns")
    )
    assert single == columns
