# SPDX-License-Identifier: Apache-2.0
"""What is odd about a source's files, before anything is read from them: it is said aloud."""

from message_store.store_root import StoreRoot
from migrate.store_files import row_problems


def source_warnings(source: StoreRoot, *, whole_log: bool) -> list[str]:
    """Files of a wrong length or missing, as sentences, and what finds the messages they held."""
    said = list(row_problems(source))
    if any(str(source.consume_queues) in sentence for sentence in said) and not whole_log:
        said.append("what such a queue has lost may still be in the log: --whole-log looks there")
    return said
