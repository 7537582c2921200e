# SPDX-License-Identifier: Apache-2.0
"""Reads Python sources with ``ast`` and finds what a law of the house forbids in them."""

import ast
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent

#: The staircase: who stands on which floor. Imports go down, never sideways and never up.
FLOORS = {
    "message_store": 0,
    "legacy_levels": 1,
    "time_index": 1,
    "timer_wheel": 1,
    "consumer_groups": 1,
    "migrate": 2,
    "compare": 2,
    "delaywheel": 3,
    "cli": 4,
}

#: The staircase within a part: its folders from the ground up; those of one step do not know each
#: other.
ROOMS = {
    "message_store": (
        ("base",), ("format",), ("kernels", "files"), ("columns", "reading"), ("interface",),
        ("writing",), ("intake", "redelivery"), ("engine",), ("memory",), ("life",),
    ),
    "legacy_levels": (("copies",), ("backlog",), ("engine", "generate"), ("reference",)),
    "timer_wheel": (
        ("format",), ("reading",), ("timers",), ("wheel", "hierarchy"), ("handover", "reference"),
    ),
}  # fmt: skip
#: The one room that those below call: a wheel and a hierarchy know each other through it alone.
HANDS_OVER = "timer_wheel.handover"


@attrs.frozen
class Source:
    """One Python file: its path below the project's root, and its text."""

    path: str
    text: str

    @classmethod
    def read(cls, path: Path) -> "Source":
        return cls(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))

    @property
    def tree(self) -> ast.Module:
        return _parsed(self)

    @property
    def part(self) -> str:
        """The part of the house it belongs to."""
        return self.path.split("/")[0].removesuffix(".py")


@cache
def _parsed(source: Source) -> ast.Module:
    return ast.parse(source.text, source.path)


@cache
def walked(tree: ast.Module) -> list[ast.AST]:
    """All that stands in a source: every law walks through it."""
    return list(ast.walk(tree))


def product_sources() -> list[Source]:
    """Every file of the product, as it lies on disk."""
    paths = [path for part in FLOORS for path in (ROOT / part).rglob("*.py")]
    return [Source.read(path) for path in sorted([*paths, *ROOT.glob("*.py")])]


def other_sources() -> list[Source]:
    """Tests, benchmarks, examples and tools."""
    folders = ["tests", "benchmarks", "examples", "tools"]
    return [Source.read(p) for folder in folders for p in sorted((ROOT / folder).rglob("*.py"))]


def _for_types_only(tree: ast.Module) -> set[ast.AST]:
    """What stands below ``if TYPE_CHECKING:`` and so never runs."""
    guards = [
        node
        for node in walked(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {below for guard in guards for child in guard.body for below in ast.walk(child)}


def imported_modules(source: Source, *, at_run_time: bool = False) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, wherever in the file it stands."""
    tree = source.tree
    unseen = _for_types_only(tree) if at_run_time else set()
    for node in walked(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A relative import stays within its own part.
            yield node.lineno, source.part if node.level else str(node.module)


def steps_up(source: Source) -> list[str]:
    """Imports of our own parts that do not go down the staircase."""
    return [
        f"{source.path}:{line}: {source.part} imports {name}"
        for line, name in imported_modules(source)
        if (other := name.split(".")[0]) in FLOORS
        and other != source.part
        and FLOORS[other] >= FLOORS[source.part]
    ]


def rooms_up(source: Source) -> list[str]:
    """Imports within a part, also for types alone, that do not go down between its folders."""
    steps = {
        f"{part}.{room}": height
        for part, rooms in ROOMS.items()
        for height, together in enumerate(rooms)
        for room in together
    }
    home = ".".join(source.path.split("/")[:2])
    if home not in steps:
        return []
    return [
        f"{source.path}:{line}: {home} imports {name}"
        for line, name in imported_modules(source)
        if name.split(".")[0] == source.part
        and not name.startswith(HANDS_OVER)
        and (room := ".".join(name.split(".")[:2])) != home
        and (room == source.part or steps.get(room, -1) >= steps[home])
    ]


def imports_of(source: Source, *libraries: str) -> list[str]:
    """Imports of the named libraries; one for types alone loads nothing and does not count."""
    return [
        f"{source.path}:{line}: imports {name}"
        for line, name in imported_modules(source, at_run_time=True)
        if name.split(".")[0] in libraries
    ]


def _meanings(tree: ast.Module) -> dict[str, str]:
    """Local names that imports bind, with the dotted name each stands for."""
    meanings: dict[str, str] = {}
    for node in walked(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.split(".")[0]
                meanings[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                meanings[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return meanings


def _dotted(node: ast.expr, meanings: dict[str, str]) -> str | None:
    """``t.time`` as ``time.time`` after ``import time as t``; None for what is no plain name."""
    if isinstance(node, ast.Name):
        return meanings.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, meanings)
        return base and f"{base}.{node.attr}"
    return None


def uses_of(source: Source, names: frozenset[str]) -> list[str]:
    """Every mention of the given dotted names, under whatever local name."""
    meanings = _meanings(source.tree)
    return [
        f"{source.path}:{node.lineno}: {name}"
        for node in walked(source.tree)
        if isinstance(node, ast.Name | ast.Attribute) and (name := _dotted(node, meanings)) in names
    ]


def method_calls(source: Source, names: frozenset[str]) -> list[str]:
    """Calls of methods with the given names on a value: not on a class, nor on what is imported."""
    meanings = _meanings(source.tree)
    found = []
    for node in walked(source.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        base = node.func.value
        is_a_value = not (
            isinstance(base, ast.Name)
            and (base.id in meanings or base.id[:1].isupper() or base.id == "cls")
        )
        if node.func.attr in names and is_a_value:
            found.append(f"{source.path}:{node.lineno}: .{node.func.attr}()")
    return found


def long_functions(source: Source, max_lines: int) -> list[str]:
    """Functions that do not fit a screen, their decorators and docstring counted."""
    return [
        f"{source.path}:{node.lineno}: {node.name} has {lines} lines"
        for node in walked(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > max_lines
    ]


def silent_raises(source: Source) -> list[str]:
    """Public functions that raise an error of their own and do not say so to who calls them."""
    found = []

    def look(body: list[ast.stmt]) -> None:
        for node in body:
            if getattr(node, "name", "_").startswith("_"):
                continue
            if isinstance(node, ast.ClassDef):
                look(node.body)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                raises = [each.exc for each in ast.walk(node) if isinstance(each, ast.Raise)]
                errors = [ast.unparse(error) for error in raises if error is not None]
                says = ast.get_docstring(node) or ""
                is_said = "aise" in says or "efuse" in says or "NotImplementedError" in errors
                if errors and not is_said:
                    found.append(f"{source.path}:{node.lineno}: {node.name} raises {errors}")

    look(source.tree.body)
    return found


def circles(sources: list[Source]) -> list[list[str]]:
    """Modules that import each other, directly or in a round, for types alone too."""
    paths = {module_name(source): source for source in sources}
    needs = {name: _needs(source, paths.keys()) - {name} for name, source in paths.items()}
    while True:
        free = {name for name, others in needs.items() if not others & needs.keys()}
        free |= needs.keys() - {name for others in needs.values() for name in others}
        if not free:
            return _rounds(needs)
        needs = {name: others for name, others in needs.items() if name not in free}


def module_name(source: Source) -> str:
    """``timer_wheel.wheel.store`` of ``timer_wheel/wheel/store.py``."""
    return source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _needs(source: Source, modules: Set[str]) -> set[str]:
    needs = set()
    for node in walked(source.tree):
        if isinstance(node, ast.Import):
            needs |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                needs.add(inner if inner in modules else node.module)
    return needs & modules


def _rounds(needs: dict[str, set[str]]) -> list[list[str]]:
    """The modules of each round: those that reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            ahead += (more := needs.get(ahead.pop(), set()) - seen)
            seen |= more
        return seen

    reach = {name: reached(name) for name in needs}
    rounds = {
        tuple(sorted(other for other in reach[name] if name in reach.get(other, ())))
        for name in needs
        if name in reach[name]
    }
    return [list(members) for members in sorted(rounds)]


def own_fields(source: Source) -> set[str]:
    """Attributes that the classes of a module have: declared in them, or set on ``self``."""
    fields = set()
    for owner in (node for node in walked(source.tree) if isinstance(node, ast.ClassDef)):
        fields |= {
            part.target.id
            for part in owner.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        fields |= {
            node.attr
            for node in ast.walk(owner)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        }
    return fields


def foreign_fields(source: Source, fields: Set[str]) -> list[str]:
    """Assignments to ``fields`` of objects whose class is in another module."""
    theirs = fields - own_fields(source)
    return [
        f"{source.path}:{node.lineno}: {ast.unparse(node)}"
        for node in walked(source.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr in theirs
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]


def defined_in(source: Source) -> set[str]:
    """Functions and classes of a module, and methods as ``Class.method``."""
    names = set()
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef)
            }
    return names
