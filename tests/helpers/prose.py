# SPDX-License-Identifier: Apache-2.0
"""Takes the sentences out of pages, docstrings, help texts and messages, and counts their words.

A name in code, a link and a quoted command are a word each; a list of names in code is one word.
Headings, table cells, list items and paragraphs end the sentence that stands in them.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

import attrs
import click

from tests.source_laws import Source

WORDS_AT_MOST = 25
CODE = "X"
"""What stands for a name in code, or for a value that is put into a message."""

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_RULE = re.compile(r"^[|: -]+$", re.MULTILINE)
_NAME = re.compile(r"(`+)(?:(?!\1).)+\1")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NAMES = re.compile(rf"\b{CODE}(?:(?:, and |, or |, | and | or |/| ){CODE}\b)+")
_BOUNDARY = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[\"'”)*_]*\s+")
_WORD = re.compile(r"\S*[^\W_]\S*")
_DOCSTRING = re.compile(r'\A(?:#[^\n]*\n)*r?"""(.*?)"""', re.DOTALL)
_TRIPLE = re.compile(r'^ *r?"""(.*?)"""', re.DOTALL | re.MULTILINE)
_REMARKS = re.compile(r"(?:^ *|  )# .*(?:\n *# .*)*", re.MULTILINE)
_RAISE = re.compile(r"^( *)raise [\w.]+\((?:\n(?:.*\n)*?\1\)|.*).*$", re.MULTILINE)
_ITEM = re.compile(r"^ *(?:[-*+]|\d+\.) +")


@attrs.frozen
class Sentence:
    """One sentence, and where it stands: a page with a line, a module, a verb."""

    where: str
    text: str

    @property
    def is_long(self) -> bool:
        """Whether it has more words than a reader takes in at once."""
        return len(_WORD.findall(self.text)) > WORDS_AT_MOST

    def shown(self) -> str:
        """The sentence with its place and its number of words, for a failure."""
        return f"{self.where}: {len(_WORD.findall(self.text))} words: {self.text}"


def without_code(text: str) -> str:
    """The text on one line: names in code are ``X``, links their words, lists of names one name."""
    plain = _LINK.sub(r"\1", _NAME.sub(CODE, text))
    return _NAMES.sub(CODE, " ".join(plain.replace("**", "").split()))


def sentences(where: str, text: str) -> Iterator[Sentence]:
    """The sentences of one paragraph, item or cell."""
    return (Sentence(where, each) for each in _BOUNDARY.split(without_code(text)) if each)


def page_sentences(name: str, text: str) -> Iterator[Sentence]:
    """The sentences of a Markdown page outside code blocks, cell by cell in a table."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n")

    text = _RULE.sub("", _COMMENT.sub(blank, _FENCE.sub(blank, text)))
    start, paragraph = 0, ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        is_row, is_heading = line.startswith("|"), line.startswith("#")
        if paragraph and (is_row or is_heading or not line.strip() or _ITEM.match(line)):
            yield from sentences(f"{name}:{start}", paragraph)
            paragraph = ""
        if is_row:
            cells = _NAME.sub(CODE, line).strip("| ").replace("\\|", "/").split("|")
            for cell in cells:
                yield from sentences(f"{name}:{number}", cell)
        elif is_heading:
            yield from sentences(f"{name}:{number}", line.lstrip("# "))
        elif line.strip():
            start = start if paragraph else number
            paragraph += " " + _ITEM.sub("", line, count=1)


def docstring_sentences(source: Source) -> Iterator[Sentence]:
    """The sentences of a module's docstring, without examples and indented blocks."""
    found = _DOCSTRING.search(source.text)
    text = inspect.cleandoc(found[1]) if found else ""
    for paragraph in re.split(r"\n\s*\n", text):
        if not paragraph.startswith((" ", ">>>")):
            for item in re.split(r"\n(?=[-*] )", paragraph):
                yield from sentences(source.path, item.removeprefix("- "))


def source_sentences(source: Source) -> Iterator[Sentence]:
    """The sentences of all docstrings and comments of a source; those of a docstring's code too."""
    for pattern in (_TRIPLE, _REMARKS):
        for found in pattern.finditer(source.text):
            line = source.text.count("\n", 0, found.start()) + 1
            yield from sentences(f"{source.path}:{line}", re.sub(r"(?m)^ *# ", "", found[0]))


def message_sentences(source: Source) -> Iterator[Sentence]:
    """The sentences of every text that stands in a ``raise X(…)``; only those are parsed."""
    for found in _RAISE.finditer(source.text):
        line = source.text.count("\n", 0, found.start()) + 1
        for text in _texts(ast.parse(textwrap.dedent(found[0]))):
            yield from sentences(f"{source.path}:{line}", text)


def _texts(node: ast.AST) -> Iterator[str]:
    """The texts below a call; what is put into one becomes ``X``."""
    if isinstance(node, ast.JoinedStr):
        values = (v.value if isinstance(v, ast.Constant) else CODE for v in node.values)
        yield "".join(str(value) for value in values)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and " " in node.value:
            yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def help_sentences(main: click.Group) -> Iterator[Sentence]:
    """The sentences of the help of all verbs: their purpose, flags and arguments."""
    context = click.Context(main)
    for name in main.list_commands(context):
        verb = main.get_command(context, name)
        assert verb is not None
        yield from _help_text(name, verb.help or "")
        yield from _help_text(name, verb.short_help or "")
        for parameter in verb.params:
            where = f"{name} {parameter.opts[0]}"
            yield from _help_text(where, getattr(parameter, "help", "") or "")
    yield from _help_text("delaywheel", main.help or "")


def _help_text(where: str, text: str) -> Iterator[Sentence]:
    """What ``\\b`` marks keeps its lines, so it is an example or a table and no prose."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if not paragraph.startswith("\b"):
            yield from sentences(where, paragraph)
