# SPDX-License-Identifier: Apache-2.0
"""Where a source's log and queues lie, from its broker's configuration or from flags.

The one place that resolves them, for ``StoreRoot``. A broker has no setting for the place of
its consume queues, though many configurations name one (`storePathConsumeQueue`). It permits a link
to there. RocketMQ: MessageStoreConfig, MultiPathMappedFileQueue (4.9.7).
"""

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from message_store.base.errors import OptionsError, SourceError
from message_store.files.places import Places, each_directory_once
from message_store.files.segments import holds_queues, list_segments
from message_store.files.small_files import is_directory

_ROOT = "storePathRootDir"
_LOGS = "storePathCommitLog"
_READ_ONLY_LOGS = "readOnlyCommitLogStorePaths"
_ENTRIES = "storePathDLedgerCommitLog"
_QUEUES = "storePathConsumeQueue"
_SEPARATOR = ","

Conf = Mapping[str, str]


@attrs.frozen(kw_only=True)
class GivenPlaces:
    """Directories that flags name. They count, whatever a configuration says."""

    commit_logs: tuple[Path, ...] = ()
    entries: tuple[Path, ...] = ()
    consume_queues: Path | None = None

    def require_there(self) -> None:
        """Raise SourceError for a directory that is not there, and for parts without any file."""
        queues = () if self.consume_queues is None else (self.consume_queues,)
        for paths, has_files in (
            (self.commit_logs, list_segments),
            (self.entries, list_segments),
            (queues, holds_queues),
        ):
            for path in paths:
                if not is_directory(path):
                    raise SourceError(f"{path}: no directory is there")
            if paths and not any(map(has_files, paths)):
                raise SourceError(f"{paths[0]}: has no file of the store; is its disk mounted?")


NOT_GIVEN = GivenPlaces()


def places_in(root: Path, conf: Conf, given: GivenPlaces = NOT_GIVEN) -> Places:
    """Where the parts of the store at ``root`` lie by a broker's configuration and by flags, for
    ``placed``.

    A path below the configuration's `storePathRootDir` is taken as one below ``root``, which may be
    a copy. Raises OptionsError where the configuration names a log that may be another store's, and
    SourceError.
    """
    conf_logs, conf_entries = _log_paths(root, conf, _LOGS), _log_paths(root, conf, _ENTRIES)
    if not given.commit_logs:
        _require_its_own(root, conf, conf_logs)
    if not given.entries:
        _require_its_own(root, conf, conf_entries)
    logs, entries = given.commit_logs or conf_logs, given.entries or conf_entries
    own_log = each_directory_once([root / "commitlog"])
    every = each_directory_once(logs)
    queues = given.consume_queues
    return Places(
        commit_logs=() if _same(every, own_log) else every,
        entries=each_directory_once(entries),
        consume_queues=None if queues is None else queues.absolute(),
        linked=each_directory_once([*logs, *entries, *_paths(root, conf, conf.get(_QUEUES, ""))]),
    )


def _log_paths(root: Path, conf: Conf, key: str) -> tuple[Path, ...]:
    """The directories of a log. A broker heeds the read-only ones beside a list alone."""
    text = conf.get(key, "")
    paths = _paths(root, conf, text)
    is_list = _SEPARATOR in text
    return (*paths, *(_paths(root, conf, conf.get(_READ_ONLY_LOGS, "")) if is_list else ()))


def _paths(root: Path, conf: Conf, text: str) -> tuple[Path, ...]:
    """The directories of a list; those below the configuration's root are below ``root``."""
    home = conf.get(_ROOT, "").strip()
    paths = []
    for path in (Path(each.strip()) for each in text.split(_SEPARATOR) if each.strip()):
        is_below = bool(home) and path.is_relative_to(home)
        paths.append(root.absolute() / path.relative_to(home) if is_below else path.absolute())
    return tuple(paths)


def _require_its_own(root: Path, conf: Conf, paths: tuple[Path, ...]) -> None:
    """Raise OptionsError where a log outside of ``root`` may be that of another store."""
    outside = [path for path in paths if not path.is_relative_to(root.absolute())]
    if not outside:
        return
    home, own = conf.get(_ROOT, "").strip(), root.absolute() / "commitlog"
    if home and os.path.realpath(home) != os.path.realpath(root):
        raise OptionsError(
            f"the configuration is that of the store {home}, with its log in {outside[0]}; say with"
            f" --commit-log or --dledger-log where the log of {root} lies"
        )
    if not home and own not in paths and list_segments(own):
        raise OptionsError(
            f"{own} has a log, and the configuration names {outside[0]}; say with --commit-log"
            " which of them is the store's"
        )


def _same(one: tuple[Path, ...], two: tuple[Path, ...]) -> bool:
    return [os.path.realpath(path) for path in one] == [os.path.realpath(path) for path in two]
