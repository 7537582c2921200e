# SPDX-License-Identifier: Apache-2.0
"""The command ``delaywheel``, also as ``python -m cli``; and the exit codes that it ends with."""

try:
    from delaywheel.terminal.main import main
    from delaywheel.terminal.verb import (
        DONE,
        EXIT_CODES,
        FINDINGS,
        INTERRUPTED,
        SOURCE_UNREADABLE,
        STOPPED_BY_POLICY,
        TARGET_UNWRITABLE,
        USAGE,
        exit_code,
    )
except KeyboardInterrupt:  # while modules are loaded, INTERRUPTED too; then the verbs take it
    import sys

    sys.stderr.write("interrupted\n")
    sys.exit(130)

__all__ = ["DONE", "EXIT_CODES", "FINDINGS", "INTERRUPTED", "SOURCE_UNREADABLE"]
__all__ += ["STOPPED_BY_POLICY", "TARGET_UNWRITABLE", "USAGE", "exit_code", "main"]

if __name__ == "__main__":
    main()
