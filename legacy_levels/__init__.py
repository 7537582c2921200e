# SPDX-License-Identifier: Apache-2.0
"""The 18 delay levels of RocketMQ: their pending messages, and how far delivery has come.

``LevelStore`` is loaded when it is first asked for, with NumPy and the kernels that it needs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legacy_levels.engine.rules import LevelRules
    from legacy_levels.engine.store import LevelStore

__all__ = ["LevelRules", "LevelStore"]


def __getattr__(name: str) -> Any:
    if name == "LevelStore":
        from legacy_levels.engine.store import LevelStore

        return LevelStore
    if name == "LevelRules":
        from legacy_levels.engine.rules import LevelRules

        return LevelRules
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
