# SPDX-License-Identifier: Apache-2.0
"""How reports become HTML: templates in which everything is escaped, pictures as text in the page.

Whatever a page shows is made printable first: no control character of a store reaches it.
"""

import io
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from message_store.base.printable import printable

_PATHS = re.compile(r'\bd="[^"]*"')
_DIGITS = re.compile(r"(\.\d\d)\d+")


def html_environment(package: str) -> Environment:
    """The environment that renders the templates of a package."""
    return Environment(
        loader=PackageLoader(package, package_path="."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )


def picture_text(figure: Any) -> str:
    """A matplotlib figure as SVG for a page; the same numbers make the same text.

    Paths are told to a hundredth of a point: nobody sees more, and the page is half as long.
    """
    picture = io.StringIO()
    figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    text = picture.getvalue()
    return _PATHS.sub(lambda path: _DIGITS.sub(r"\1", path[0]), text[text.index("<svg") :])
