# SPDX-License-Identifier: Apache-2.0
"""Starting Spark: one sentence when it does not start, and no JVM left behind by Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.spark.cluster import reason_of
from migrate.spark.session import JavaMissingError, require_java

ROOT = Path(__file__).resolve().parents[3]

_INTERRUPTED = """
import os, signal, threading
from migrate.spark.session import spark_session
signal.signal(signal.{number}, signal.default_int_handler)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.{number})).start()
try:
    with spark_session("local[1]"):
        print("started")
except KeyboardInterrupt:
    print("interrupted")
"""


def children_of(group: int) -> list[str]:
    """Command lines of the living processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return [command for command in found if command]


@pytest.mark.check
@pytest.mark.spark
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_an_interrupt_while_the_jvm_is_born_leaves_none_behind(number: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED.format(number=number)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=120)
        assert output.strip() == "interrupted"
        assert children_of(process.pid) == []
    finally:
        if children_of(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


_NONSENSE = """
from message_store.base.errors import MigrationError
from migrate.spark.session import spark_session
try:
    with spark_session("nonsense"):
        print("started")
except MigrationError as error:
    print(error)
"""


@pytest.mark.check
@pytest.mark.spark
def test_a_master_that_is_none_gets_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NONSENSE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    [line] = done.stdout.splitlines()
    assert line.startswith("Spark does not start on nonsense: ")
    assert "at org.apache" not in line
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("answer", "version"), [('openjdk version "11.0.2"', "11"), ('java version "1.8.0_292"', "1")]
)
def test_an_old_java_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, version: str
) -> None:
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    said = f"17 or newer, not {version}: JAVA_HOME is '{tmp_path}': set it"
    with pytest.raises(JavaMissingError, match=said):
        require_java()


def test_a_java_home_that_has_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(JavaMissingError, match=r"JAVA_HOME is '.*nothing': .*install Java 17"):
        require_java()


def test_a_missing_java_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match="apt-get install"):
        require_java()


@pytest.mark.parametrize(
    ("error", "said", "reason"),
    [
        (
            "JAVA_GATEWAY_EXITED",
            "x\norg.apache.spark.SparkException: bad master\n\tat a.b(C)",
            "bad master",
        ),
        (
            (
                "An error occurred while calling z:a.b.\n: org.apache.spark.SparkException: Job"
                " aborted: java.io.IOException: Cannot run program\n\tat a.b(C)"
            ),
            "",
            "Job aborted: java.io.IOException: Cannot run program",
        ),
        (
            (
                "An error occurred while calling z:a.b.\n: org.apache.spark.SparkException: Job"
                " aborted: a.PythonException: Traceback (most recent call last):\n"
                '  File "x.py", line 1\n    f()\nValueError: no such thing\n\n\tat a.b(C)'
            ),
            "",
            "ValueError: no such thing",
        ),
        ("just this\nand that", "", "just this"),
        ("", "", "no reason given"),
    ],
)
def test_the_reason_is_one_line(error: str, said: str, reason: str) -> None:
    assert reason_of(error, said) == reason
