# SPDX-License-Identifier: Apache-2.0
"""The Spark session of a conversion: it finds Java, starts workers on this interpreter, keeps
quiet.

Two settings are measured. Payloads never pass through the JVM, so its optimising compiler only
takes cores from the workers. Without it 4 million messages took 1.75 s, not 2.5 s. An empty Python
task costs 20 to 27 ms over a Unix socket and 30 to 36 ms over TCP.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from message_store.base.errors import MigrationError
from migrate.spark.cluster import DEFAULT_MASTER, is_one_machine, reason_of

JAVA_MIN_VERSION = 17


class JavaMissingError(MigrationError):
    """Spark cannot run on the Java that is installed, or there is none."""


def require_java() -> None:
    """Raise JavaMissingError, with what to do, unless Java 17 or newer is at hand."""
    home = os.environ.get("JAVA_HOME") or None
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)"
    if home is not None:
        advice = f"JAVA_HOME is {home!r}: set it to a Java 17 or newer, or unset it and {advice}"
    if java is None:
        raise JavaMissingError(f"Spark needs Java and there is none: {advice}")
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError as error:
        raise JavaMissingError(f"Java cannot be started ({error}): {advice}") from error
    match = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    version = int(match.group(1)) if match else 0
    if version < JAVA_MIN_VERSION:
        raise JavaMissingError(
            f"Spark needs Java {JAVA_MIN_VERSION} or newer, not {version or 'unknown'}: {advice}"
        )


@contextmanager
def spark_session(
    master: str = DEFAULT_MASTER, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for a ``with`` block; a session that is already running is used and left running.

    Raises JavaMissingError without Java 17, MigrationError when Spark does not start.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    require_java()
    # `spark.pyspark.python` does nothing for our tasks: only this variable reaches their workers.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_one_machine(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("delaywheel").master(master)
    for key, value in {**_settings(master), **(conf or {})}.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as chatter:
        try:
            with _interrupt_later(), _standard_error_into(chatter.fileno()):
                session = builder.getOrCreate()
        except Exception as error:
            chatter.seek(0)
            output = chatter.read()[-20_000:].decode("utf-8", "replace")
            reason = reason_of(str(error), output)
            raise MigrationError(f"Spark does not start on {master}: {reason}") from error
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _interrupt_later() -> Iterator[None]:
    """Delay SIGINT and SIGTERM while the JVM starts: interrupted then, it would be orphaned."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    raising = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in raising:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
    if came:
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
        raise KeyboardInterrupt


@contextmanager
def _standard_error_into(descriptor: int) -> Iterator[None]:
    """Start the JVM with standard error in a file: its warnings would tear the progress lines."""
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _python_path() -> str:
    """The PYTHONPATH of workers, with this project, also when it is not installed."""
    home = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": _python_path(),
        # Workers are started with `-m`: without this they import from the working directory first,
        # so a `migrate.py` there would be executed in the place of this package.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.memory": "1g",
    }
    if is_one_machine(master):
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return settings
