# SPDX-License-Identifier: Apache-2.0
"""The laws of the house (docs/ARCHITECTURE.md), read from the sources themselves."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.source_laws import (
    ROOMS,
    ROOT,
    Source,
    circles,
    defined_in,
    foreign_fields,
    imports_of,
    long_functions,
    method_calls,
    other_sources,
    own_fields,
    product_sources,
    rooms_up,
    silent_raises,
    steps_up,
    uses_of,
    walked,
)

pytestmark = pytest.mark.xdist_group("house")  # whose process parses the sources once

PRODUCT = product_sources()
EVERYTHING = [*PRODUCT, *other_sources()]

COMMAND_LINE = {source.path for source in PRODUCT if source.part in ("cli", "delaywheel")}
CLOCK = {"message_store/base/clock.py"}
LAYOUTS = {"message_store/format/layout.py", "message_store/format/java_numbers.py"}
ENVIRONMENT_READERS = {
    "compare/rocketmq/jars.py",
    "message_store/kernels/cache.py",
    "migrate/spark/session.py",
}
FILE_TOUCHERS = {
    "message_store/files/segments.py",
    "message_store/files/line_journal.py",
    "message_store/files/small_files.py",
    "message_store/files/store_lock.py",
    "message_store/files/store_root.py",
    "message_store/kernels/cache.py",
    "message_store/files/live_segments.py",
    # Files without a name, for columns of large stores.
    "message_store/files/array_room.py",
    "compare/rocketmq/jars.py",
    "compare/running/work_files.py",
    "migrate/write/large_files.py",
    "migrate/write/publishing.py",
    "migrate/write/staging.py",
    # Opens what it gives to another user, without following links.
    "migrate/write/owner.py",
    "time_index/buckets.py",
    # A temporary directory of links, in the place of a directory that is not to be written to.
    "message_store/files/rocksdb/view.py",
    # And one with a copy of queues that lie in RocksDB.
    "message_store/files/rocksdb/queues.py",
}
#: One writes the index of a hierarchical wheel, one looks at databases of others.
DATABASES = {
    "timer_wheel/hierarchy/index_db.py",
    "message_store/files/rocksdb/view.py",
}
#: Temporary files that are gone when their user is: not part of any store.
TEMPORARY_FILES = {
    "migrate/demo.py": "tempfile.mkdtemp",
    "migrate/report/html.py": "tempfile.TemporaryFile",
    "migrate/spark/session.py": "tempfile.TemporaryFile",
    "migrate/verify/jobs.py": "tempfile.TemporaryDirectory",
}
ARCHIVES = {"migrate/demo.py": "shutil.unpack_archive"}

#: Modules that still set fields of objects of others, and how many times. It may only fall.
FIELDS_OF_OTHERS = {
    "compare/running/virtual_run.py": 1,
}

CLOCK_READS = frozenset(
    {f"time.{name}" for name in ("time", "monotonic", "perf_counter", "process_time")}
    | {f"time.{name}_ns" for name in ("time", "monotonic", "perf_counter", "process_time")}
    | {"time.sleep", "time.localtime", "time.gmtime", "time.ctime", "datetime.date.today"}
    | {f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")}
    | {"datetime.now", "datetime.utcnow", "datetime.today", "uuid.uuid1"}
)
FILE_FUNCTIONS = frozenset(
    {"open", "io.open", "mmap.mmap", "numpy.memmap", "numpy.fromfile", "numpy.save", "numpy.load"}
    | {f"os.{name}" for name in ("open", "fdopen", "replace", "rename", "renames", "remove")}
    | {f"os.{name}" for name in ("unlink", "truncate", "ftruncate", "link", "symlink", "rmdir")}
    | {f"{module}.open" for module in ("tarfile", "lzma", "gzip", "bz2", "zipfile")}
    | {f"shutil.{name}" for name in ("copy", "copy2", "copyfile", "copytree", "move", "rmtree")}
    | {f"os.{name}" for name in ("read", "readv", "pread", "preadv", "write", "writev", "pwrite")}
    | {f"os.{name}" for name in ("pwritev", "sendfile", "splice", "copy_file_range", "mkfifo")}
    | {"os.posix_fallocate", "numpy.savez", "numpy.savetxt", "numpy.loadtxt", "numpy.genfromtxt"}
    | {f"shutil.{name}" for name in ("copyfileobj", "unpack_archive", "make_archive")}
    | {f"tempfile.{name}" for name in ("NamedTemporaryFile", "SpooledTemporaryFile", "mkstemp")}
    | {f"tempfile.{name}" for name in ("TemporaryFile", "TemporaryDirectory", "mkdtemp", "mktemp")}
    | {f"pyarrow.{name}" for name in ("memory_map", "OSFile", "output_stream", "input_stream")}
)
FILE_METHODS = frozenset(
    {"open", "read_bytes", "read_text", "write_bytes", "write_text", "tofile", "unlink", "rename"}
    | {"symlink_to", "hardlink_to", "touch"}
)
ENVIRONMENT = frozenset({"os.environ", "os.environb", "os.getenv", "os.putenv"})


def allowed(source: Source) -> set[str | None]:
    """The functions with a named exception in this file."""
    return {exceptions.get(source.path) for exceptions in (TEMPORARY_FILES, ARCHIVES)}


def outside(places: set[str]) -> list[Source]:
    return [source for source in PRODUCT if source.path not in places]


def test_the_house_is_not_empty() -> None:
    assert {source.part for source in PRODUCT} >= {"message_store", "timer_wheel", "migrate", "cli"}


# --- the staircase ------------------------------------------------------------------------------


def test_imports_go_down_the_staircase() -> None:
    assert [step for source in PRODUCT for step in steps_up(source)] == []


def test_imports_go_down_between_the_folders_of_a_part() -> None:
    assert [step for source in PRODUCT for step in rooms_up(source)] == []
    known = {
        ".".join(source.path.split("/")[:2])
        for source in PRODUCT
        if source.part in ROOMS and source.path.count("/") > 1
    }
    assert known == {f"{part}.{room}" for part in ROOMS for step in ROOMS[part] for room in step}


def test_a_folder_is_a_thought() -> None:
    held = Counter(str(Path(s.path).parent) for s in PRODUCT if not s.path.endswith("__init__.py"))
    assert {folder: count for folder, count in held.items() if count > 16} == {}


def test_the_tests_of_a_package_have_its_folders() -> None:
    rooms = {Path(source.path).parent for source in PRODUCT}
    tested = {
        Path(source.path).parent.relative_to("tests")
        for source in EVERYTHING
        if re.match(
            r"tests/(?:message_store|legacy_levels|timer_wheel|consumer_groups|migrate|compare)/",
            source.path,
        )
    }
    assert tested - rooms == set()
    assert len(tested) > 25


def test_a_prefix_is_a_folder_that_nobody_made() -> None:
    families = Counter(
        f"{path.parent}/{path.stem.split('_')[0]}_"
        for path in (Path(source.path) for source in PRODUCT)
        if path.name != "__init__.py"
    )
    assert {family: count for family, count in families.items() if count > 3} == {}


def test_no_modules_import_each_other_not_even_for_types() -> None:
    assert circles(PRODUCT) == []


def test_a_field_belongs_to_its_class() -> None:
    fields = set().union(*(own_fields(source) for source in PRODUCT))
    held = {s.path: count for s in PRODUCT if (count := len(foreign_fields(s, fields)))}
    assert {path: n for path, n in held.items() if n > FIELDS_OF_OTHERS.get(path, 0)} == {}


def test_only_migrate_knows_spark() -> None:
    elsewhere = [source for source in PRODUCT if source.part != "migrate"]
    assert [found for source in elsewhere for found in imports_of(source, "pyspark", "py4j")] == []


def test_only_the_command_line_knows_click_and_rich() -> None:
    below = outside(COMMAND_LINE)
    assert [found for source in below for found in imports_of(source, "click", "rich")] == []


def test_rocksdb_is_known_in_named_places_only() -> None:
    elsewhere = outside(DATABASES)
    assert [found for source in elsewhere for found in imports_of(source, "rocksdict")] == []


def test_the_product_does_not_lean_on_its_tests_or_tools() -> None:
    tools = ("tests", "benchmarks", "examples", "pytest", "hypothesis")
    assert [found for source in PRODUCT for found in imports_of(source, *tools)] == []


def test_help_is_asked_for_without_loading_the_heavy_libraries() -> None:
    heavy = {"numba", "pyspark", "pandas", "matplotlib"}
    program = f"import sys, cli; print(sorted({heavy!r} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_the_page_names_each_folder_with_what_it_hides() -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    packages = [source for source in PRODUCT if source.path.endswith("/__init__.py")]
    rows = {
        f"| `{Path(source.path).parent}/` | {' '.join(purpose.split())} |"
        for source in packages
        if (purpose := (ast.get_docstring(source.tree) or "").partition("\n\n")[0])
    }
    assert len(rows) == len(packages) > 40
    assert {row for row in rows if row not in page} == set()


def test_the_walks_name_what_is_there() -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    text = page.partition("## Three walks")[2].partition("## Laws")[0]
    sources = {source.path: source for source in PRODUCT}
    named = set(re.findall(r"`([a-z_/]+\.py)`", text))
    assert named - sources.keys() == set()
    steps = re.findall(r"^\d+\. .*", text, re.M)
    assert len(steps) == 24
    placed = [pair for step in steps for pair in re.findall(r"`([a-z_/]+\.py)` `([\w.]+)`", step)]
    assert len(placed) >= len(steps)
    lost = [f"{path}: {name}" for path, name in placed if name not in defined_in(sources[path])]
    assert lost == []
    everywhere = set().union(*map(defined_in, sources.values()))
    assert set(re.findall(r"`([A-Z]\w+\.\w+)`", text)) - everywhere == set()


# --- the five laws ------------------------------------------------------------------------------


def test_byte_layouts_are_written_only_as_layouts() -> None:
    assert [found for source in outside(LAYOUTS) for found in imports_of(source, "struct")] == []


def test_time_comes_in_through_one_door() -> None:
    assert [found for source in outside(CLOCK) for found in uses_of(source, CLOCK_READS)] == []


def test_files_are_touched_in_named_places_only() -> None:
    others = outside(FILE_TOUCHERS)
    by_function = [
        found
        for source in others
        for found in uses_of(source, FILE_FUNCTIONS)
        if found.split(": ")[1] not in allowed(source)
    ]
    by_method = [found for source in others for found in method_calls(source, FILE_METHODS)]
    assert by_function + by_method == []


def test_an_exception_that_nobody_uses_is_none() -> None:
    used = {
        (source.path, found.split(": ")[1])
        for source in PRODUCT
        for found in uses_of(source, FILE_FUNCTIONS)
    }
    assert {*TEMPORARY_FILES.items(), *ARCHIVES.items()} <= used


def test_nothing_below_the_command_line_prints() -> None:
    below = outside(COMMAND_LINE)
    assert [found for source in below for found in uses_of(source, frozenset({"print"}))] == []


def test_the_environment_is_read_in_named_places_only() -> None:
    others = outside(ENVIRONMENT_READERS)
    assert [found for source in others for found in uses_of(source, ENVIRONMENT)] == []


def two_circles(source: Source) -> list[list[str]]:
    text = f"if TYPE_CHECKING:\n    from legacy_levels.copies import {Path(source.path).stem}"
    return circles([source, Source("legacy_levels/copies/other.py", text)])


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (lambda s: steps_up(s), "from timer_wheel.wheel.store import WheelStore"),
        (lambda s: steps_up(s), "def later():\n    import migrate"),
        (lambda s: rooms_up(s), "from legacy_levels import LevelStore"),
        (lambda s: imports_of(s, "pyspark"), "from pyspark.sql import SparkSession"),
        (lambda s: steps_up(s), "from delaywheel.terminal.render.output import Output"),
        (lambda s: imports_of(s, "struct"), "import struct as s"),
        (lambda s: uses_of(s, CLOCK_READS), "import time as t\nt.time_ns()"),
        (lambda s: uses_of(s, CLOCK_READS), "from time import sleep\nsleep(1)"),
        (lambda s: uses_of(s, CLOCK_READS), "from datetime import datetime\ndatetime.now()"),
        (lambda s: uses_of(s, FILE_FUNCTIONS), "open('x')"),
        (lambda s: uses_of(s, FILE_FUNCTIONS), "import os\nos.pwrite(1, b'x', 0)"),
        (lambda s: uses_of(s, FILE_FUNCTIONS), "from os import preadv\npreadv(1, [b], 0)"),
        (lambda s: uses_of(s, FILE_FUNCTIONS), "import shutil\nshutil.unpack_archive('x')"),
        (lambda s: uses_of(s, FILE_FUNCTIONS), "import tempfile\ntempfile.mkdtemp()"),
        (lambda s: uses_of(s, FILE_FUNCTIONS), "import numpy as np\nnp.memmap('x')"),
        (lambda s: method_calls(s, FILE_METHODS), "path.read_bytes()"),
        (lambda s: method_calls(s, FILE_METHODS), "(folder / 'x').open('rb')"),
        (lambda s: uses_of(s, ENVIRONMENT), "from os import environ\nenviron['HOME']"),
        (lambda s: uses_of(s, frozenset({"print"})), "print('hello')"),
        (lambda s: long_functions(s, 2), "def f():\n    a = 1\n    return a"),
        (lambda s: foreign_fields(s, {"end"}), "def f(log):\n    log.end = 1"),
        (silent_raises, "class A:\n    def f(self):\n        'Do.'\n        raise ValueError"),
        (two_circles, "from legacy_levels.copies.other import x"),
        (two_circles, "import legacy_levels.copies.other"),
    ],
)
def test_a_broken_law_is_noticed(law: Callable[[Source], list[Any]], text: str) -> None:
    assert len(law(Source("legacy_levels/copies/sketch.py", text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from timer_wheel import WheelStore\nWheelStore.open('store')",
        "from message_store.files import store_root\nstore_root.open('store')",
        "class A:\n    @classmethod\n    def make(cls):\n        return cls.open('store')",
    ],
)
def test_opening_a_store_is_not_opening_a_file(text: str) -> None:
    assert method_calls(Source("migrate/sketch.py", text), FILE_METHODS) == []


# --- the command line ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verbs() -> dict[str, click.Command]:
    main = import_module("cli").main
    return {name: main.get_command(click.Context(main), name) for name in main.commands}


def test_every_verb_ends_its_help_with_a_worked_example(verbs: dict[str, click.Command]) -> None:
    runner = CliRunner()
    helps = {name: runner.invoke(verb, ["-h"]).output for name, verb in verbs.items()}
    example = r"^\s*(\$ )?delaywheel {}\b"
    assert [n for n, text in helps.items() if not re.search(example.format(n), text, re.M)] == []
    assert len(helps) >= 5


def test_a_flag_speaks_of_an_argument_that_its_verb_has(verbs: dict[str, click.Command]) -> None:
    for verb in verbs.values():
        usage, _, flags = CliRunner().invoke(verb, ["-h"]).output.partition("Options:")
        assert {"SOURCE", "TARGET", "STORE"} & set(re.findall(r"\b[A-Z]+\b", flags)) <= set(
            re.findall(r"\b[A-Z]+\b", usage)
        ), verb.name


def test_every_verb_speaks_json(verbs: dict[str, click.Command]) -> None:
    silent = [
        name
        for name, verb in verbs.items()
        if "--json" not in [flag for parameter in verb.params for flag in parameter.opts]
    ]
    assert silent == []


# --- the package --------------------------------------------------------------------------------


def test_every_part_is_packaged() -> None:
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = facts["tool"]["setuptools"]
    parts = {source.part for source in PRODUCT} - {"cli"}
    assert {f"{part}*" for part in parts} == set(listed["packages"]["find"]["include"])
    assert listed["py-modules"] == ["cli"]
    folders = {Path(source.path).parent for source in PRODUCT} - {Path()}
    assert {folder for folder in folders if not (ROOT / folder / "__init__.py").is_file()} == set()


def test_every_package_says_that_it_has_types() -> None:
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = facts["tool"]["setuptools"]
    untyped = [
        name
        for name in listed["packages"]["find"]["include"]
        if not (ROOT / name.removesuffix("*") / "py.typed").is_file()
    ]
    assert untyped == []
    assert "py.typed" in listed["package-data"]["*"]


# --- the look of a file -------------------------------------------------------------------------


def test_every_file_names_its_licence_first() -> None:
    line = "# SPDX-License-Identifier: Apache-2.0"
    firsts = {
        source.path: source.text.removeprefix("#!/usr/bin/env python3\n").split("\n")[0]
        for source in EVERYTHING
        if source.text
    }
    assert [path for path, first in firsts.items() if first != line] == []


def test_every_module_opens_with_its_purpose() -> None:
    silent = [s.path for s in EVERYTHING if s.text and not ast.get_docstring(s.tree)]
    assert silent == []


def test_every_example_in_a_docstring_is_run() -> None:
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    places = facts["tool"]["pytest"]["ini_options"]["testpaths"]
    shown = [source.path for source in EVERYTHING if re.search(r"^ +>>> ", source.text, re.M)]
    assert [path for path in shown if path.split("/")[0] not in places] == []


def test_imports_come_before_code() -> None:
    """Modules that were joined have one head, also for types."""
    late = []
    for source in PRODUCT:
        code = [isinstance(node, ast.FunctionDef | ast.ClassDef) for node in source.tree.body]
        rest = source.tree.body[code.index(True) :] if True in code else []
        late += [
            f"{source.path}:{node.lineno}"
            for node in rest
            if isinstance(node, ast.Import | ast.ImportFrom)
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        ]
    assert late == []


def test_a_module_is_a_chapter() -> None:
    # A bound of 350 lines cut algorithms into files that call each other crosswise.
    lengths = {source.path: source.text.count("\n") for source in PRODUCT}
    assert {path: lines for path, lines in lengths.items() if lines > 500} == {}


def test_functions_fit_a_screen() -> None:
    assert [found for source in PRODUCT for found in long_functions(source, 60)] == []


def test_a_function_says_what_it_raises() -> None:
    # What a verb says to a person is in its help; its exit codes are tested.
    told = [source for source in PRODUCT if not source.path.startswith("delaywheel/terminal/")]
    assert [found for source in told for found in silent_raises(source)] == []


def test_no_test_is_skipped_without_a_reason() -> None:
    bare = [
        f"{source.path}:{node.lineno}"
        for source in EVERYTHING
        for node in walked(source.tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in ("skip", "skipif")  # to unparse all takes seconds
        and ast.unparse(node.func) in ("pytest.skip", "pytest.mark.skip", "pytest.mark.skipif")
        and not (node.args if ast.unparse(node.func) == "pytest.skip" else node.keywords)
    ]
    assert bare == []
