# SPDX-License-Identifier: Apache-2.0
"""Columns of properties texts as Arrow maps: only what belongs to the user, as a broker reads it.

The scalar law is ``decode_properties`` without the names that engines and brokers steer by; no row
is looked at by itself.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from message_store.columns.byte_column import ByteColumn
from message_store.format.message_rules import RESERVED_PROPERTIES

MAP = pa.map_(pa.string(), pa.string())
_BACKWARD = slice(None, None, -1)


def readable_text(column: ByteColumn) -> pa.Array:
    """A column as strings; bytes that are not UTF-8 are replaced, as brokers do."""
    try:
        return column.to_arrow(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in column], pa.string())


def user_properties(texts: ByteColumn) -> pa.Array:
    """The map of each properties text: entries without name or value dropped, the last of equal
    names kept, reserved names left out.

    >>> user_properties(ByteColumn.of([b"a\\x011\\x02TAGS\\x01x\\x02a\\x012", b""])).to_pylist()
    [[('a', '2')], []]
    """
    entries = pc.split_pattern(readable_text(texts), "\x02")
    parents = pc.list_parent_indices(entries).to_numpy()
    flat = pc.list_flatten(entries)
    dividers = pc.binary_length(pc.list_element(pc.split_pattern(flat, "\x01", max_splits=1), 0))
    at = dividers.to_numpy().astype(np.int64)
    is_entry = (at > 0) & (at + 1 < pc.binary_length(flat).to_numpy())
    parents, flat = parents[is_entry], flat.filter(pa.array(is_entry))
    halves = pc.split_pattern(flat, "\x01", max_splits=1)
    names, values = pc.list_element(halves, 0), pc.list_element(halves, 1)
    kept = _kept(parents, names)
    counts = np.bincount(parents[kept], minlength=len(texts))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    chosen = pa.array(kept)
    return pa.MapArray.from_arrays(pa.array(offsets), names.take(chosen), values.take(chosen), MAP)


def _kept(parents: np.ndarray, names: pa.Array) -> np.ndarray:
    """The places of the entries that count, in their order."""
    coded = names.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    known = coded.dictionary.to_pylist()
    is_reserved = np.array([name in RESERVED_PROPERTIES for name in known], np.bool_)
    together = parents.astype(np.int64) * max(1, len(known)) + codes
    _values, from_the_end = np.unique(together[_BACKWARD], return_index=True)
    last = np.sort(len(together) - 1 - from_the_end)
    return last[~is_reserved[codes[last]]] if len(last) else last
