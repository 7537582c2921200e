# SPDX-License-Identifier: Apache-2.0
"""To whom the files of a store belong: what is added to it has to be its broker's to open."""

import os
from collections.abc import Iterable
from pathlib import Path

from message_store.errors import TargetError
from message_store.store_root import StoreRoot
from migrate.staged_output import target_errors

_MODE_BITS = 0o7777


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
