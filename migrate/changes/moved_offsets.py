# SPDX-License-Identifier: Apache-2.0
"""delayOffset.json with some levels moved forward, in the handwriting of the broker that wrote it.

What is not moved stays as a broker would take it: where `--offsets` chose another file than it
would, that choice is for the levels that move only.
"""

from collections.abc import Mapping

import attrs

from legacy_levels.delay_offsets import DelayOffsets, encode_delay_offsets
from message_store.format.broker_json import ConfigDialect


def moved_offsets(offsets: DelayOffsets, to: Mapping[int, int], now_ms: int) -> bytes:
    """The text in which each level of ``to`` stands there, and every other where it stood."""
    choices = offsets.by_choice()
    taken = offsets.broker_choice
    table = {**(offsets.offsets if taken is None else choices[taken]), **to}
    version = offsets.main.data_version or offsets.backup.data_version
    dialect = offsets.dialect
    if dialect is None:
        dialect = ConfigDialect.ROCKETMQ_5_5 if version else ConfigDialect.ROCKETMQ_4_9
    if version is not None:
        version = attrs.evolve(version, counter=version.counter + 1, timestamp_ms=now_ms)
    return encode_delay_offsets(table, dialect, version)
