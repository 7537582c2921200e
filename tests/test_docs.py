# SPDX-License-Identifier: Apache-2.0
"""What the pages say is true: examples run, verbs are there, links lead somewhere.

A ``console`` block is run line by line and must show what is printed (``...`` stands for anything);
``python`` blocks that follow each other are run in one process, each by itself; the ``delaywheel``
commands of a ``sh`` block must be commands that exist.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from itertools import chain, groupby
from pathlib import Path

import click
import pytest

from tests.page_blocks import Block, blocks_of, commands_in
from tests.source_laws import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SAMPLE = "migrate/sample_store.tar.xz"
RUNNABLE = ("console", "python")
#: A process of its own for each would start Spark's JVM for each.
RUN_BLOCKS = """
import sys
for where, text in zip(sys.argv[1::2], sys.argv[2::2]):
    exec(compile(text, where, "exec"), {"__name__": "__main__"})
"""


def runnable_pages() -> list[str]:
    return sorted({block.page for block in BLOCKS if block.language in RUNNABLE})


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """An empty folder with the sample in its place and a ``delaywheel`` that runs this checkout."""
    (tmp_path / "migrate").mkdir()
    (tmp_path / SAMPLE).symlink_to(ROOT / SAMPLE)
    command = tmp_path / "bin" / "delaywheel"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run_in(workplace: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": f"{workplace / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
    }
    return subprocess.run(
        command, cwd=workplace, env=environment, capture_output=True, text=True, timeout=280
    )


def check_console(block: Block, workplace: Path) -> None:
    same = doctest.OutputChecker().check_output
    for command in commands_in(block.text):
        if command.line.startswith(("make ", "git ", "cd ")):
            continue
        run = run_in(workplace, "bash", "-c", command.line)
        where = f"{block.page}:{block.line}: $ {command.line}"
        assert run.returncode == 0, f"{where}\n{run.stdout}{run.stderr}"
        how = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        shown = same(command.output.strip() + "\n", run.stdout.strip() + "\n", how)
        assert shown, f"{where}\n--- the page shows\n{command.output}--- printed\n{run.stdout}"


@pytest.mark.check
@pytest.mark.spark
@pytest.mark.parametrize("page", runnable_pages())
def test_the_examples_of_a_page_run_and_show_what_they_print(page: str, workplace: Path) -> None:
    runnable = [each for each in BLOCKS if each.page == page and each.language in RUNNABLE]
    for language, together in groupby(runnable, lambda block: block.language):
        if language == "console":
            for block in together:
                check_console(block, workplace)
        else:
            texts = [(f"{block.page}:{block.line}", block.text) for block in together]
            run = run_in(workplace, sys.executable, "-c", RUN_BLOCKS, *chain(*texts))
            assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_every_block_says_what_it_is(block: Block) -> None:
    assert block.language in {"console", "sh", "python", "text", "json", "properties"}


def delaywheel_commands() -> list[list[str]]:
    lines = [
        line.removeprefix("$ ")
        for block in BLOCKS
        if block.language in ("console", "sh")
        for line in block.text.replace("\\\n", " ").split("\n")
    ]
    found = [shlex.split(line, comments=True) for line in lines if "delaywheel " in line]
    return [words[words.index("delaywheel") + 1 :] for words in found if "delaywheel" in words]


@pytest.mark.parametrize("words", delaywheel_commands(), ids=" ".join)
def test_every_command_on_a_page_exists(words: list[str]) -> None:
    main: click.Group = import_module("cli").main
    if words[0].startswith("-"):
        return
    verb = main.get_command(click.Context(main), words[0])
    assert verb is not None
    flags = {flag for parameter in verb.params for flag in parameter.opts} | {"--help"}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= flags


def test_every_verb_is_on_a_page() -> None:
    main: click.Group = import_module("cli").main
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [verb for verb in main.commands if f"delaywheel {verb}" not in pages] == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


# --- what belongs to one machine ----------------------------------------------------------------


def tracked_files() -> list[Path]:
    """The files git knows; without git (an unpacked archive), all that are not hidden."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return [path for name in listed.stdout.split("\0") if (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and "/." not in str(path)]


def test_no_file_names_a_place_on_one_machine() -> None:
    places = re.compile(
        rb"/(?:work|root|home|Users)/\w"
        rb"|pypi\.(?:org|python)|pythonhosted|repo1?\.maven|deb\.debian\.org|npmjs\.org"
    )
    named = [
        f"{path.relative_to(ROOT)}: {found[0].decode()}"
        for path in tracked_files()
        if path != Path(__file__) and (found := places.search(path.read_bytes()))
    ]
    assert named == []


def cited_tests() -> list[tuple[str, str, str]]:
    """Page, file and function of every test that a page names."""
    cited = re.compile(r"(tests/[\w/]+\.py)::([\w:]+)")
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    return [(name, *found) for name, text in pages.items() for found in cited.findall(text)]


def test_the_tests_that_pages_name_are_there() -> None:
    missing = []
    for page, path, names in cited_tests():
        file = ROOT / path
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if not re.search(rf"^ *def {names.rpartition(':')[2]}\(", text, re.M):
            missing.append(f"{page}: {path}::{names}")
    assert missing == []
