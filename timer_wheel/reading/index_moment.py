# SPDX-License-Identifier: Apache-2.0
"""Whether all parts of a hierarchical wheel's database are of the moment of its state."""

from collections.abc import Mapping

from message_store.files.rocksdb.manifest import Manifest, ManifestNote
from timer_wheel.format.index_layouts import family_apart


def part_apart(
    known: Mapping[str, int] | None, last: Mapping[str, bytes | None], manifest: Manifest | None
) -> str | None:
    """What is not of that moment: the manifest, or a column family. None where all is.

    ``known`` is what the default family says of the batches, ``last`` the ``LAST_BATCH`` of each
    other one. No batch is written while changes are on their way into tables. So the manifest that
    a batch tells of has all tables of what came before it, and the log of changes has the rest. If
    that manifest is there, whole, nothing of an earlier batch is missing.
    """
    if known and known["manifest_number"]:
        keys = ("manifest_number", "manifest_bytes", "manifest_checksum")
        note = ManifestNote(*(known[key] for key in keys))
        if manifest is None or not manifest.goes_on_from(note):
            return "the manifest"
    return family_apart(known, last)
