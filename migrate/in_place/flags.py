# SPDX-License-Identifier: Apache-2.0
"""What a conversion in place was asked for, as the flags of its command: whoever finds one that was
stopped can give the same command again.
"""

from migrate.settings import ConvertOptions, TargetSettings

_ANY_FILE = "FILE"


def options_as_flags(options: ConvertOptions) -> list[str]:
    """The flags beside STORE and ``--execute``, of what is not as it is unless told.

    A broker's configuration is known by what it says, and not by where it lies: its flag says FILE.
    """
    settings, table = options.settings, options.level_table
    flags = [f"--only-level={level}" for level in options.only_levels]
    if settings != TargetSettings(precision_ms=settings.precision_ms):
        flags.append(f"--target-conf={_ANY_FILE}")
    elif settings != TargetSettings():
        flags.append(f"--precision-ms={settings.precision_ms}")
    if table is not None:
        flags.append(f"--level-table={table.text()}")
    if options.on_bad_record != "fail":
        flags.append(f"--on-bad-record={options.on_bad_record}")
    if options.offsets != "auto":
        flags.append(f"--offsets={options.offsets}")
    if options.after_crash:
        flags.append("--after-crash")
    return flags
