# SPDX-License-Identifier: Apache-2.0
"""Where Spark runs unless told otherwise, and whether that is this machine alone.

Stands apart so that the command line can say its defaults without loading Spark.
"""

DEFAULT_MASTER = "local[*,4]"


def is_one_machine(master: str) -> bool:
    """Whether all workers of this master see the files of this machine."""
    return master.startswith("local")
