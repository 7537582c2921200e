# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, call the library, hand the result to ``Output``. No logic of its own.

Results go to stdout, progress and warnings to stderr. What brings Spark or compiled kernels is
imported inside the verbs, so that ``delaywheel --help`` answers at once.
"""

from delaywheel.terminal.verb import main
from delaywheel.terminal.verbs import (  # noqa: F401  an import makes their verbs commands of main
    changes,
    check,
    compare,
    convert,
    engines,
    export,
    fleet,
    groups,
    life,
    look,
    samples,
    verify,
)

__all__ = ["main"]
