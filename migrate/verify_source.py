# SPDX-License-Identifier: Apache-2.0
"""What is pending in a source, as ``legacy_levels`` reads it, under the conversion's settings."""

from message_store.store_root import StoreRoot
from migrate.verify_pending import PendingMessages
from migrate.verify_settings import ConversionSettings


def read_pending(root: StoreRoot, settings: ConversionSettings) -> PendingMessages:
    """The pending messages in the order of the log, without levels that were not asked for."""
    raise NotImplementedError
