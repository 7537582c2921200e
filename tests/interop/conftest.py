# SPDX-License-Identifier: Apache-2.0
"""What every interop test stands on: the versions it names, brokers that never stay behind.

`@pytest.mark.interop("4.9.7", "5.5.0")` says which RocketMQ versions a test runs. Where they cannot
be had (no JDK, no Maven, no network for the first download) it is skipped with the reason; with
CI set it fails, since there a silent skip would pass for a proof.
"""

import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from tests.interop.broker import Broker
from tests.interop.jars import jars, missing_tools

#: It runs in an environment of its own, where the client is installed.
collect_ignore = ["grpc_client.py"]

MakeBroker = Callable[..., Broker]
Tell = Callable[[str], None]

_brokers: list[Broker] = []
_MEASURED = "measured with real brokers"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fetch the versions a test names, or say why it cannot run."""
    versions = [str(each) for mark in item.iter_markers("interop") for each in mark.args]
    if not versions:
        return
    reason = missing_tools() or _cannot_be_had(versions)
    if reason is None:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI must run the interop tests: {reason}", pytrace=False)
    pytest.skip(reason)


def _cannot_be_had(versions: list[str]) -> str | None:
    return next((why for version in versions if (why := _lacking(version))), None)


@cache
def _lacking(version: str) -> str | None:
    """Ask once a run: without a network the answer takes Maven its time."""
    try:
        jars(version)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as failure:
        return f"RocketMQ {version} cannot be had: {failure}"
    return None


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all that a module's brokers and judges write."""
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="module")
def make_broker(scratch: Path) -> Iterator[MakeBroker]:
    """Make brokers (arguments as Broker's, without the scratch folder); kill what is left."""

    def make(
        version: str, store_root: Path, kind: type[Broker] = Broker, **options: object
    ) -> Broker:
        folder = scratch / f"broker-{len(_brokers)}-{version}"
        folder.mkdir()
        broker = kind(version, store_root, folder, **options)  # type: ignore[arg-type]
        _brokers.append(broker)
        return broker

    yield make
    for broker in _brokers:
        broker.kill()
    _brokers.clear()


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Print a measured line at the end of the run; it is for reading, nothing depends on it."""
    return partial(record_property, _MEASURED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests measured, in whichever process they ran."""
    told = {
        str(line): None
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, line in getattr(report, "user_properties", ())
        if name == _MEASURED
    }
    if told:
        terminalreporter.section(_MEASURED)
        for each in told:
            terminalreporter.line(each)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of each broker's log beside a failure."""
    report = yield
    if report.failed:
        for broker in _brokers:
            report.sections.append((f"broker {broker.version}", broker.log_tail()))
    return report
