# SPDX-License-Identifier: Apache-2.0
"""Hour, minute and second wheels in RocksDB: an index over the timer queue, which is the truth."""
