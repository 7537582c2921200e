# SPDX-License-Identifier: Apache-2.0
"""The owner of a store's files: what is added must be readable for its broker.

Whoever is given a directory may put links into it at once. Therefore each file is opened once,
without following links, and owner and mode are set on the open file.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from message_store.base.errors import OptionsError, TargetError
from message_store.files.small_files import is_directory
from message_store.files.store_root import StoreRoot
from migrate.write.staging import Staging, clear_staging, target_errors

_LOST_AND_FOUND = "lost+found"
_MODE_BITS = 0o7777
_READ_BITS = 0o444


@attrs.frozen
class Access:
    """Owner (user and group id) and permissions of a target's files; None leaves them as made."""

    owner: tuple[int, int] | None = None
    mode: int | None = None

    def require_possible(self) -> None:
        """Raise OptionsError where the system would refuse: only root gives files to others."""
        if self.owner is not None and os.geteuid() not in (0, self.owner[0]):
            raise OptionsError("--owner: only root can give files to another user")
        if self.mode is not None and self.mode & 0o600 != 0o600:
            raise OptionsError("--mode: a broker reads and writes its files: 600 at least")

    def give(self, root: Path, *, exclude: Path) -> None:
        """Give ``root`` and everything below it to the owner; private files stay private.

        ``exclude``, links, files with another name and ``lost+found`` are left alone. A directory
        is given after its contents; whoever may read it may enter it. Raises TargetError.
        """
        if self == Access():
            return
        left = {exclude, root / _LOST_AND_FOUND}
        with target_errors(root):
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for each in _descriptors(descriptor, root, left):
                self._give(each)

    def _give(self, descriptor: int) -> None:
        if self.owner is not None:
            os.fchown(descriptor, *self.owner)
        facts = os.fstat(descriptor)
        is_private = facts.st_mode & 0o077 == 0
        if self.mode is not None and not is_private:
            enter = (self.mode & _READ_BITS) >> 2 if stat.S_ISDIR(facts.st_mode) else 0
            os.fchmod(descriptor, self.mode | enter)


def tidy_up(staging: Staging, access: Access) -> None:
    """End a conversion whose marker is written: give its files away, and remove its staging
    directory if that is still there. Raises TargetError.
    """
    if os.path.lexists(staging.path):
        access.give(staging.target.path, exclude=staging.path)
        clear_staging(staging)


def _descriptors(directory: int, path: Path, left: set[Path]) -> Iterator[int]:
    """Everything below an open directory, then itself, each open for as long as it is looked at."""
    try:
        for name in sorted(os.listdir(directory)):
            if path / name in left:
                continue
            is_directory = stat.S_ISDIR(
                os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            )
            descriptor = _opened(name, directory, is_directory=is_directory)
            if descriptor is None:
                continue
            if is_directory:
                yield from _descriptors(descriptor, path / name, left)
                continue
            try:
                facts = os.fstat(descriptor)
                if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1:
                    yield descriptor
            finally:
                os.close(descriptor)
        yield directory
    finally:
        os.close(directory)


def _opened(name: str, directory: int, *, is_directory: bool) -> int | None:
    """A file or directory, open; None for a link, and for what cannot be opened so."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags | (os.O_DIRECTORY if is_directory else 0), dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENOENT):
            return None
        raise


def owned_part(root: StoreRoot) -> Path:
    """A directory that the store's broker owns: its log or, of a DLedger member that never had an
    ordinary one, the root.
    """
    return root.commit_log if is_directory(root.commit_log) else root.path


def require_owner(root: StoreRoot) -> None:
    """Raise TargetError unless we are the owner of a store, or may give files to whom we like."""
    with target_errors(root.path):
        owner = owned_part(root).stat().st_uid
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
    """Give files to the owner of another file; only root can and needs to. Raises TargetError."""
    if os.geteuid() != 0:
        return
    with target_errors(like):
        facts = like.stat()
        for path in paths:
            ours = path.lstat()
            if (ours.st_uid, ours.st_gid) != (facts.st_uid, facts.st_gid):
                os.chown(path, facts.st_uid, facts.st_gid, follow_symlinks=False)
