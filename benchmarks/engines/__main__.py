# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.engines``."""

from benchmarks.engines.measure import main

main()
