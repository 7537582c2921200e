# SPDX-License-Identifier: Apache-2.0
"""To whom the files of a store belong: what is added to it has to be its broker's to open."""

import os
from collections.abc import Iterable
from pathlib import Path

import attrs

from message_store.errors import OptionsError, TargetError
from message_store.store_root import StoreRoot
from migrate.staged_output import target_errors

_MODE_BITS = 0o7777
_READ_BITS = 0o444


@attrs.frozen
class Access:
    """To whom the files of a target shall belong (user and group id), and with which permissions;
    None leaves them as they were made: to who makes them, 0644.
    """

    owner: tuple[int, int] | None = None
    mode: int | None = None

    def require_possible(self) -> None:
        """Raise OptionsError where the system would refuse: only root gives files to others."""
        if self.owner is not None and os.geteuid() not in (0, self.owner[0]):
            raise OptionsError("--owner: only root can give files to another user")
        if self.mode is not None and self.mode & 0o600 != 0o600:
            raise OptionsError("--mode: a broker reads and writes its files: 600 at least")

    def give(self, root: Path, *, but: Path) -> None:
        """Give everything below ``root``, and itself, to the owner; what is private stays so.

        ``but`` is left alone. Directories can be entered by whoever may read. Raises TargetError.
        """
        if self == Access():
            return
        with target_errors(root):
            for parent, _directories, files in os.walk(root):
                place = Path(parent)
                if place == but or but in place.parents:
                    continue
                self._give(place, is_directory=True)
                for name in files:
                    self._give(place / name, is_directory=False)

    def _give(self, path: Path, *, is_directory: bool) -> None:
        if self.owner is not None:
            os.chown(path, *self.owner, follow_symlinks=False)
        is_private = path.stat(follow_symlinks=False).st_mode & 0o077 == 0
        if self.mode is not None and not is_private:
            enter = (self.mode & _READ_BITS) >> 2 if is_directory else 0
            path.chmod(self.mode | enter)


def require_owner(root: StoreRoot) -> None:
    """Raise TargetError unless we are the owner of a store, or may give files to whom we like."""
    with target_errors(root.path):
        owner = root.commit_log.stat().st_uid
    if os.geteuid() not in (0, owner):
        raise TargetError(
            f"{root.path}: belongs to user id {owner}; do this as that user, or the broker could"
            " not open what is added"
        )


def file_mode(path: Path) -> int:
    """The permissions of a file. Raises TargetError."""
    with target_errors(path):
        return path.stat().st_mode & _MODE_BITS


def give_away(paths: Iterable[Path], *, like: Path) -> None:
    """Let files belong to whom another belongs; only root can and needs to. Raises TargetError."""
    if os.geteuid() != 0:
        return
    with target_errors(like):
        facts = like.stat()
        for path in paths:
            ours = path.lstat()
            if (ours.st_uid, ours.st_gid) != (facts.st_uid, facts.st_gid):
                os.chown(path, facts.st_uid, facts.st_gid, follow_symlinks=False)
