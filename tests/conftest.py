# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the tiers, where stores lie, one Spark session a process, what a missing
tool means, how hard Hypothesis tries.
"""

import gc
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.tiers import SLOWER, TIERS, Case, broker_lanes, is_chosen, is_in_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Examples are many and small; how long one takes on a busy machine says nothing about the code.
# What a gate has tried once it tries again: chance belongs to the night.
settings.register_profile(
    "default",
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.register_profile(
    "nightly",
    parent=settings.get_profile("default"),
    max_examples=400,
    derandomize=False,
    print_blob=True,
)
settings.register_profile("deep", parent=settings.get_profile("nightly"), max_examples=2_000)

# Spark on one machine: never ask the network which address this host has.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

#: A test without the marker of a slower tier that takes longer is named at the end.
LONG_S = 2.0
#: Memory that the stores of a run may need; with less, they lie on the disk.
ROOM_BYTES = 6 << 30
_MEMORY = Path("/dev/shm")
#: Fixtures that are set up for every module, but cost nothing.
_CHEAP = frozenset({"look_ahead", "make_broker", "scratch"})


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers", "which tests run (tests/README.md)")
    group.addoption("--tier", choices=TIERS, help="run the tests of one tier; default: all")
    group.addoption(
        "--turn",
        default="0",
        metavar="COMMIT",
        help="the commit whose turn of the nightly tests --tier check runs",
    )
    group.addoption("--part", metavar="K/N", help="run the K-th of N parts of what is chosen")
    group.addoption(
        "--seed", type=int, metavar="N", help="the seed of random tests (nightly: a new one)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    is_night = config.getoption("tier") == "nightly"
    settings.load_profile(
        os.environ.get("HYPOTHESIS_PROFILE", "nightly" if is_night else "default")
    )
    if settings().derandomize:
        _draw_the_same_in_every_run()
    if hasattr(config, "workerinput"):
        return
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().getrandbits(32) if is_night else 1
    if config.option.basetemp is None and _has_room():
        config.option.basetemp = str(_MEMORY / f"delaywheel-tests-{os.getpid()}")
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))
    if getattr(config.option, "numprocesses", None):
        # Else every process compiles every kernel when the cache is cold.
        warm = [sys.executable, "-m", "tests.helpers.warm_kernels"]
        subprocess.run(warm, cwd=config.rootpath, check=True)


def _draw_the_same_in_every_run() -> None:
    """Hypothesis also draws numbers and texts that stand in whatever modules are loaded. A test
    would try other examples in a whole run than alone: in a gate it draws none of them.
    """
    providers: Any = importlib.import_module("hypothesis.internal.conjecture.providers")
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = providers.Constants


def _has_room() -> bool:
    """Whether there is a file system in memory with room for all stores of a run."""
    try:
        facts = os.statvfs(_MEMORY)
    except OSError:
        return False
    return os.access(_MEMORY, os.W_OK) and facts.f_bavail * facts.f_frsize > ROOM_BYTES


def pytest_report_header(config: pytest.Config) -> str:
    return f"tier: {config.option.tier or 'all'}, --seed {config.option.seed}"


# --- which tests, and which of them stay together -------------------------------------------------


def _group_of(item: pytest.Item) -> str | None:
    """What has to stay in one process: all that use the Spark session; a module that shares a
    fixture which is dear enough to be shared, by the parameters of that fixture if it has any.
    """
    if item.get_closest_marker("spark"):
        return "spark"
    definitions = item._fixtureinfo.name2fixturedefs if hasattr(item, "_fixtureinfo") else {}
    shared = {
        name: found[-1]
        for name, found in definitions.items()
        if name not in _CHEAP and found[-1].scope in ("module", "class", "package")
    }
    if not shared:
        return None
    module = item.nodeid.partition("::")[0]
    callspec = getattr(item, "callspec", None)
    if callspec is None or not all(found.params for found in shared.values()):
        return module
    return f"{module}[{'-'.join(str(callspec.indices[name]) for name in sorted(shared))}]"


def _rank(item: pytest.Item, markers: frozenset[str], group: str | None) -> int:
    """Which tests run first: those that wait for brokers, then those that cannot be spread, then
    the long ones. Who starts a Spark session ends the one that others share, and comes behind them.
    """
    if "interop" in markers:
        return 0
    if group == "spark":
        return 1 if "spark" in getattr(item, "fixturenames", ()) else 2
    if group is not None:
        return 3
    return 4 if "nightly" in markers else 5


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier, commit, part = (config.getoption(name) for name in ("tier", "turn", "part"))
    chosen: list[tuple[int, pytest.Item]] = []
    brokers: dict[str, int] = {}
    in_lanes: list[tuple[pytest.Item, str]] = []
    deselected = []
    for item in items:
        markers = frozenset(mark.name for mark in item.iter_markers())
        group = _group_of(item)
        case = Case(markers, group or item.nodeid)
        wanted = tier is None or is_chosen(case, tier, commit)
        if wanted and part is not None:
            number, _, count = part.partition("/")
            wanted = is_in_part(case, int(number), int(count))
        if not wanted:
            deselected.append(item)
            continue
        chosen.append((_rank(item, markers, group), item))
        if "interop" in markers and group != "spark":
            named = {each for mark in item.iter_markers("interop") for each in mark.args}
            brokers[case.group] = max(brokers.get(case.group, 0), len(named))
            in_lanes.append((item, case.group))
        elif group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    lanes = broker_lanes(brokers)
    for item, name in in_lanes:
        item.add_marker(pytest.mark.xdist_group(lanes[name]))
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for _, item in sorted(chosen, key=lambda each: each[0])]


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """What is collected stays: looking for garbage meanwhile costs a tenth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: no later collection of garbage has to look at them.

    Nor need it come every 700 objects: that was a twenty-fifth of the time of a run.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


# --- what a test is given -------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def python_s_own_interrupt() -> None:
    """PySpark leaves a handler of its own in a process that had a session."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A test's own seed: fixed but at night, and printed with a failure (`--seed` repeats it).

    The same alone and in a whole run, where the name of a test ends in that of its group.
    """
    group = request.node.get_closest_marker("xdist_group")
    name = request.node.nodeid.removesuffix(f"@{group.args[0]}" if group else "")
    return crc32(f"{request.config.option.seed} {name}".encode())


@pytest.fixture(autouse=True, scope="session")
def _disk_with_room() -> Iterator[None]:
    """How full this machine's disk is changes no warning that a test looks at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("migrate.write.room.used_ratio", lambda _directory: 0.5)
        yield


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """In memory where there is room, but on the disk for who is marked `disk`."""
    if request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="delaywheel-test-") as place:
        yield Path(place)


class _OneSession:
    """The Spark session that the tests of a process share: a JVM takes seconds to start."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._session: SparkSession | None = None

    def get(self) -> "SparkSession":
        from migrate.spark.data_sources import register_data_sources
        from migrate.spark.session import spark_session

        if self._session is None or self._session.sparkContext._jsc is None:
            conf = {"spark.sql.shuffle.partitions": "2"}
            self._session = self._open.enter_context(spark_session("local[2,4]", conf))
            register_data_sources(self._session)
        return self._session

    def stop(self) -> None:
        self._open.close()
        self._session = None


_one_session = _OneSession()


@pytest.fixture
def spark() -> "SparkSession":
    """A session that is up already, for tests that do not test sessions."""
    return _one_session.get()


def pytest_unconfigure() -> None:
    _one_session.stop()


@cache
def lacking_java() -> str | None:
    """What is wrong with this machine's Java, or None: the product's own sentence."""
    # Only tests that start Spark pay for importing it.
    from migrate.spark.session import JavaMissingError, require_java

    try:
        require_java()
    except JavaMissingError as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test needs and this machine lacks is a skip on a laptop and a failure in CI."""
    if item.get_closest_marker("spark") is None:
        return
    if lacking := lacking_java():
        if os.environ.get("CI"):
            pytest.fail(lacking)
        pytest.skip(lacking)
    if "spark" not in getattr(item, "fixturenames", ()):
        # It starts sessions of its own, and must not be handed the shared one.
        _one_session.stop()


# --- what is said at the end ----------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that are too slow for the tier that they are in."""
    reports = [each for key in ("passed", "failed") for each in terminalreporter.stats.get(key, [])]
    long = [
        (report.duration, report.nodeid)
        for report in reports
        if report.when == "call"
        and report.duration > LONG_S
        and not report.keywords.keys() & {*SLOWER, "interop"}
    ]
    if long:
        terminalreporter.section(f"over {LONG_S:g} s without the marker of a slower tier")
        for seconds, name in sorted(long, reverse=True):
            terminalreporter.line(f"{seconds:6.1f} s  {name}")
