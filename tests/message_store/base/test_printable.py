# SPDX-License-Identifier: Apache-2.0
"""Words of a command to copy: printed safely, and pasted they are what they were. Durations."""

import os
import shutil
import subprocess

import pytest

from message_store.base.printable import duration, printable, shell_word

BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
@pytest.mark.parametrize(
    "path",
    [
        "plain/path-1.0",
        "two words; and 'more'",
        "~",
        "",
        "line\nbreak",
        "a\tb\\n'c'\"d\"$HOME`ls`!",
        "\x1b[31mred\x7f0f",
        "käse\u202e\u00adab",
        os.fsdecode(b"not utf-8 \xff1 \n"),
        "\nffff",
    ],
)
def test_a_path_is_the_same_after_printing_and_pasting(path: str) -> None:
    assert BASH is not None
    word = shell_word(path)
    assert printable(word) == word
    script = f"printf %s {word}".encode()
    done = subprocess.run([BASH, "-c", script], capture_output=True, check=True)
    assert done.stdout == os.fsencode(path)


@pytest.mark.parametrize(
    ("late_ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (90_000, "1.5 min"), (-2_000, "-2.0 s")],
)
def test_durations_are_short(late_ms: float, text: str) -> None:
    assert duration(late_ms) == text
