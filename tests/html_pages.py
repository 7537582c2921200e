# SPDX-License-Identifier: Apache-2.0
"""What every report as a page must be: free of markup and control from outside, whole in itself,
and fit for a browser.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from matplotlib.image import imread

EVIL = "<script>alert(1)</script>\x1b[31m\u202e"
"""A text of a store or of a user that would do something if a page let it."""


def require_harmless(page: str, times: int) -> None:
    """Markup from outside is shown so often, as text, and no control character is left."""
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == times
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", page)


def require_whole_in_itself(page: str) -> None:
    """Nothing is fetched."""
    assert re.findall(r"(?:src|href)=[\"'](?!#)", page) == []
    assert "@import" not in page


def browser() -> str | None:
    """A Chromium, where there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


def seen_in_a_browser(page: Path, height: int) -> Any:
    """The pixels of a page, 1,000 wide, red, green and blue from 0 to 1; the browser complained of
    nothing.
    """
    place = page.parent
    picture = place / "seen.png"
    command = [
        str(browser()), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={place / 'profile'}", f"--window-size=1000,{height}",
        "--enable-logging=stderr", f"--screenshot={picture}", page.as_uri(),
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(place), "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
    shown = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=True
    )
    assert "CONSOLE" not in shown.stderr
    pixels = imread(picture)[:, :, :3]
    assert pixels.shape[:2] == (height, 1000)
    return pixels
