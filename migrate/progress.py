# SPDX-License-Identifier: Apache-2.0
"""How far a long step has come: what its caller passes to be told."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, how much is done, and of how much."""


def no_progress(_stage: str, _done: int, _total: int) -> None:
    """For callers that do not want to be told."""
