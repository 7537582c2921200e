# SPDX-License-Identifier: Apache-2.0
"""Nothing that a race has started outlives it, however it ended."""

import signal
import subprocess
import sys

import pytest

from tests.source_laws import ROOT

CHILD = """
import os, sys, time
from compare.running.faults import end_with
end_with(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid() + int(sys.argv[2]))]).wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
@pytest.mark.parametrize(("is_gone", "said"), [(0, ["ready\n"]), (1, [])])
def test_a_process_ends_with_the_one_that_started_it(is_gone: int, said: list[str]) -> None:
    command = [sys.executable, "-c", PARENT, CHILD, str(is_gone)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "".join(said)
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == ""  # the last that could write there is gone
