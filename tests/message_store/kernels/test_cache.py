# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels are kept for the user alone and follow every change of what they depend on."""

import ast
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from message_store.kernels import cache

_KERNEL = """
from message_store.kernels.cache import kernel
from message_store.constants_of_test import VALUE

@kernel("int64()")
def answer():
    return VALUE
"""


def run(code: str, *, home: Path, path: Path) -> str:
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    """The kernel cache in a project of its own, whose sources a test may change."""
    package = tmp_path / "project" / "message_store"
    (package / "kernels").mkdir(parents=True)
    (package / "__init__.py").write_text("from message_store.base import clock\n")
    (package / "kernels" / "__init__.py").touch()
    source = Path(__file__).parents[3] / "message_store" / "kernels" / "cache.py"
    (package / "kernels" / "cache.py").write_bytes(source.read_bytes())
    (package / "base").mkdir()
    (package / "base" / "__init__.py").touch()
    clock = source.parents[1] / "base" / "clock.py"
    (package / "base" / "clock.py").write_bytes(clock.read_bytes())
    (package / "kernels_of_test.py").write_text(_KERNEL)
    (package / "constants_of_test.py").write_text("VALUE = 2\n")
    return package.parent


@pytest.mark.check
def test_a_kernel_follows_a_constant_of_another_module(small_project: Path, tmp_path: Path) -> None:
    code = "from message_store.kernels_of_test import answer; print(answer())"
    home = tmp_path / "cache"
    assert run(code, home=home, path=small_project) == "2"
    (small_project / "message_store" / "constants_of_test.py").write_text("VALUE = 101\n")
    assert run(code, home=home, path=small_project) == "101"


@pytest.mark.check
def test_a_process_whose_sources_are_replaced_leaves_nothing_for_others(
    small_project: Path, tmp_path: Path
) -> None:
    """It has the old constants in memory, and finds the new sources on the disk."""
    home = tmp_path / "cache"
    answer = "from message_store.kernels_of_test import answer; print(answer())"
    replacing = (
        "import message_store.constants_of_test as constants;"
        "open(constants.__file__, 'w').write('VALUE = 101');"
    )
    assert run(replacing + answer, home=home, path=small_project) == "2"
    assert run(answer, home=home, path=small_project) == "101"


@pytest.mark.check
def test_the_cache_is_used_again_and_belongs_to_the_user(
    small_project: Path, tmp_path: Path
) -> None:
    code = (
        "from message_store.kernels_of_test import answer; answer();"
        "print(sum(answer.stats.cache_hits.values()))"
    )
    home = tmp_path / "cache"
    assert run(code, home=home, path=small_project) == "0"
    (small_project / "message_store" / "unrelated.py").write_text("x = 1\n")
    assert run(code, home=home, path=small_project) == "1"
    kernels = home / "delaywheel" / "kernels"
    assert kernels.stat().st_mode & 0o077 == 0


@pytest.mark.check
def test_what_the_cache_has_is_loaded_at_the_first_call(
    small_project: Path, tmp_path: Path
) -> None:
    """Also for a kernel that calls it; not by a call that it refuses for its number of values."""
    (small_project / "message_store" / "outer_of_test.py").write_text(
        "from message_store.kernels.cache import kernel\n"
        "from message_store.kernels_of_test import answer\n"
        '@kernel("int64()")\n'
        "def outer():\n"
        "    return answer() + 1\n"
    )
    answer = "from message_store.kernels_of_test import answer as f; print(len(f.overloads), f())"
    refused = (
        "from message_store.kernels_of_test import answer as f\n"
        "try: f(1)\n"
        "except TypeError: print(len(f.overloads), f())"
    )
    outer = "from message_store.outer_of_test import outer as f; print(len(f.overloads), f())"
    home = tmp_path / "cache"
    for code, said in [(answer, ["1 2", "0 2"]), (refused, ["0 2"]), (outer, ["1 3", "0 3"])]:
        assert [run(code, home=home, path=small_project) for _ in said] == said


def test_a_place_that_others_can_write_to_is_not_used(small_project: Path, tmp_path: Path) -> None:
    home = tmp_path / "cache"
    shared = home / "delaywheel" / "kernels"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    code = "from message_store.kernels.cache import cache_directory; print(cache_directory())"
    assert run(code, home=home, path=small_project) != str(shared)


def test_every_import_of_every_module_is_seen() -> None:
    """As the parser sees them; a line of text that looks like an import may count too."""
    home = Path(cache.__file__).resolve().parents[2]
    seen = 0
    for package in cache._PACKAGES:
        for source in sorted((home / package).rglob("*.py")):
            names = set()
            for node in ast.walk(ast.parse(source.read_bytes())):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names |= {node.module}
                    names |= {f"{node.module}.{alias.name}" for alias in node.names}
            paths = (home.joinpath(*name.split(".")).with_suffix(".py") for name in names)
            wanted = {path for path in paths if path.is_file() and path.is_relative_to(home)}
            wanted = {path for path in wanted if path.relative_to(home).parts[0] in cache._PACKAGES}
            assert wanted <= cache._imported_sources(source), source
            seen += len(wanted)
    assert seen > 1_000


@pytest.mark.check
def test_a_copied_environment_finds_what_the_first_one_compiled(
    small_project: Path, tmp_path: Path
) -> None:
    code = (
        "from message_store.kernels_of_test import answer;"
        "print(answer(), sum(answer.stats.cache_hits.values()))"
    )
    home = tmp_path / "cache"
    assert run(code, home=home, path=small_project) == "2 0"
    copy = shutil.copytree(small_project, tmp_path / "elsewhere" / "copy")
    assert run(code, home=home, path=copy) == "2 1"
    assert run(code, home=home, path=small_project) == "2 1"
    (copy / "message_store" / "constants_of_test.py").write_text("VALUE = 101\n")
    assert run(code, home=home, path=copy) == "101 0"
    assert run(code, home=home, path=small_project) == "2 1"


@pytest.mark.check
def test_what_was_compiled_is_known_and_whether_it_is_kept(
    small_project: Path, tmp_path: Path
) -> None:
    code = (
        "from message_store.kernels_of_test import answer;"
        "from message_store.kernels.cache import COMPILED;"
        "print(COMPILED.seconds > 0, COMPILED.is_kept)"
    )
    home = tmp_path / "cache"
    assert run(code, home=home, path=small_project) == "True True"
    assert run(code, home=home, path=small_project) == "False True"
    nowhere = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'file')!r}; {code}"
    (tmp_path / "file").write_text("")
    assert run(nowhere, home=tmp_path / "file", path=small_project) == "True False"


def test_ctrl_c_waits_for_a_compilation() -> None:
    steps = []

    def compile_and_be_interrupted() -> None:
        with cache.interrupted_later():
            signal.raise_signal(signal.SIGINT)
            steps.append("compiled")

    with pytest.raises(KeyboardInterrupt):
        compile_and_be_interrupted()
    assert steps == ["compiled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_not_lost_with_a_compilation_that_fails() -> None:
    def fail() -> None:
        with cache.interrupted_later():
            signal.raise_signal(signal.SIGINT)
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_came_meanwhile_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with cache.interrupted_later():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
