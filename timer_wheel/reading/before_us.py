# SPDX-License-Identifier: Apache-2.0
"""What a broker had done when our engine took its store over. Its copies name nothing: they are
matched once, and what was found then is written down before the store counts as ours.
"""

import json

from message_store.base.errors import SourceError
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.small_files import read_small_file, remove_file, replace_file
from message_store.files.store_root import StoreRoot

DEALT_WITH_NAME = "wheel-dealt-with.json"


def note_dealt_with(root: StoreRoot, offsets: Int64s) -> None:
    """Write down what a broker had done when the store was taken over. Raises TargetError."""
    text = json.dumps({"commit_log_offsets": offsets.tolist()})
    replace_file(root.own / DEALT_WITH_NAME, text.encode())


def has_note(root: StoreRoot) -> bool:
    """Whether anything was written down."""
    return (root.own / DEALT_WITH_NAME).exists()


def done_before_us(root: StoreRoot) -> Int64s:
    """Commit log offsets of what a broker had done when the store was taken over. One too many does
    no harm: no other record comes to lie there. Raises SourceError.
    """
    path = root.own / DEALT_WITH_NAME
    text = read_small_file(path)
    if text is None:
        return int64s([])
    try:
        return int64s(json.loads(text)["commit_log_offsets"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise SourceError(
            f"{path}: damaged: it says what a broker had delivered when the store was taken over."
            " Take it from a backup. Without it there may be duplicates"
        ) from error


def forget_dealt_with(root: StoreRoot) -> None:
    """Nothing of that is on the wheel any more, and the checkpoint says so. Raises TargetError."""
    remove_file(root.own / DEALT_WITH_NAME)
