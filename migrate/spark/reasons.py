# SPDX-License-Identifier: Apache-2.0
"""Why Spark did not do something, in a line. Needs no Spark."""

import re


def reason_of(error: str, output: str = "") -> str:
    """One line out of pages of Java frames that tells why: what a Python task raised, else the
    first exception that Java names, in ``output`` before ``error``.
    """
    text = f"{output}\n{error}"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", text)
    causes = re.findall(r"(?:[\w$]+\.)+\w*(?:Exception|Error): (.+)", text)
    lines = [line for line in error.splitlines() if line.strip()]
    return (raised or causes or lines or ["no reason given"])[0].strip()[:300]
