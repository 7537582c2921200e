# SPDX-License-Identifier: Apache-2.0
"""The end of a ``with`` statement, for stores and rows of files."""

from typing import Self


class ClosedOnExit:
    """Closes at the end, however that came."""

    def close(self) -> None:
        """The orderly end."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
