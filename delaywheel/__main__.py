# SPDX-License-Identifier: Apache-2.0
"""``python -m delaywheel``: the command line."""

from delaywheel.terminal.main import main

if __name__ == "__main__":
    main(prog_name="delaywheel")
