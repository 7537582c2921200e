# SPDX-License-Identifier: Apache-2.0
"""Retires a source after its conversion: its delivery offsets move past the messages in the target.

A broker that is started on it by mistake then delivers no duplicates. Only the offset files change.
A level moves as a whole or not at all, and only if source and target agree in all of its counts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from legacy_levels.backlog.backlog import LevelBacklog, LevelCounts, read_backlog
from legacy_levels.delay_offsets import DelayOffsets, read_delay_offsets
from message_store.base.clock import SystemClock
from message_store.base.errors import (
    FormatError,
    MigrationError,
    OptionsError,
    PlanError,
    SourceError,
    UncleanStoreError,
)
from message_store.base.printable import counted, listed, shell_word
from message_store.files.dledger import member_directory, refuse_member
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.reading.unfinished_change import DONE as CHANGE_DONE
from message_store.reading.unfinished_change import (
    describe_unfinished_change,
    telling_of_half_a_change,
)
from migrate.changes.note import (
    BEGUN,
    RETIRE,
    Change,
    begin_change,
    moved_offsets,
    put_offsets,
    unfinished_change,
)
from migrate.changes.undo import refuse_moved
from migrate.in_place.checks import read_ends
from migrate.report.finished_target import require_pair, was_converted_in_place
from migrate.report.marker import (
    CONVERSION_NAME,
    ConversionSettings,
    log_fingerprint,
    read_marker,
    read_settings,
    share_of,
)
from migrate.report.report import LevelReport
from migrate.report.whole_target import require_whole
from migrate.source.members import EPOCHS_NAME, MemberState, member_state
from migrate.write.owner import require_owner

PLANNED, DONE, NOTHING = "planned", "done", "nothing to do"
_COUNTS = ("queued", "pending", "already_delivered")
_LISTED_TOUCHES = 5
_COMPARED_BYTES = 64 << 10


class LeftBehindError(MigrationError):
    """Offsets would move past messages that were not converted."""


@attrs.frozen
class RetiredLevel:
    """A level whose delivery offset moves, and the messages that it moves past: ``converted`` and
    ``quarantined`` are in the target.
    """

    level: int
    delay_ms: int
    from_offset: int
    to_offset: int
    converted: int
    quarantined: int
    already_delivered: int
    neutral: int
    expired: int


_RETIRED = [field.name for field in attrs.fields(RetiredLevel)]


@attrs.frozen(kw_only=True)
class RetireReport:
    """What moves and what stays: ``stays`` counts the pending messages of each level that does not
    move. A broker of the source still delivers them.
    """

    source: str
    target: str
    state: str
    levels: tuple[RetiredLevel, ...]
    stays: dict[int, int]
    backup: str | None = None

    @property
    def converted(self) -> int:
        """How many messages of the target the offsets move past."""
        return sum(level.converted for level in self.levels)

    @property
    def offsets(self) -> dict[int, int]:
        """The new delivery offset of each level that moves."""
        return {level.level: level.to_offset for level in self.levels}

    def as_json(self) -> dict[str, Any]:
        """The JSON object."""
        return {**attrs.asdict(self), "converted": self.converted, "offsets": self.offsets}


def retire(source: Path, target: Path, *, execute: bool = False) -> RetireReport:
    """Plan, and with ``execute`` do, the retirement of ``source`` after its conversion to
    ``target``.

    Raises SourceError for a side that cannot be read, or that is in use, and for a target whose
    files do not hold what its report says; PlanError when the target is not of this source or the
    source has changed, LeftBehindError when messages lie between those that were converted, and
    TargetError. Twice is fine.
    """
    root = StoreRoot(source)
    refuse_member(
        root.path,
        "the offsets of one member say nothing to the others, which would deliver what was"
        " converted once more. Name all members, with --broker-conf for their dLegerPeers",
    )
    require_pair(source, target)
    [report] = _retire([root], target, lambda: root, execute=execute)
    return report


def retire_members(
    sources: Sequence[Path], target: Path, *, peers: Collection[str], execute: bool = False
) -> tuple[RetireReport, ...]:
    """``retire`` for all members of a group, one of which was converted to ``target``.

    ``peers`` are the ids of all members of a DLedger group; those of a group with a controller are
    in no file, and its ``peers`` are none. Each gets the same offsets: the queues of all are made
    of one log. Nothing is written unless all of them can be. If a run is stopped, the same one goes
    on with the members that are left. Raises what ``retire`` does, OptionsError unless the sources
    are all members of one group, and PlanError for a member with entries that the converted one
    lacks.
    """
    roots = [StoreRoot(source) for source in sources]
    for root in roots:
        root.require_readable()
    find = partial(_converted_member, roots, target, peers)
    return _retire(roots, target, find, execute=execute)


def _retire(
    roots: Sequence[StoreRoot], target: Path, find: Callable[[], StoreRoot], *, execute: bool
) -> tuple[RetireReport, ...]:
    """Retire these stores, of which ``find`` names the converted one."""
    target_root = StoreRoot(target)

    def look() -> tuple[StoreRoot, _Conversion]:
        converted = find()
        require_pair(converted.path, target)
        return converted, _Conversion.read(target_root, converted)

    with ExitStack() as held:
        for root in (*roots, target_root):
            held.enter_context(root.shared_lock())
        _, conversion = look()
        require_whole(target_root, conversion.settings, conversion.in_target)
    # Nothing is written before, no lock file either. A broker may have started meanwhile.
    with ExitStack() as held:
        for root in roots:
            if execute:
                require_owner(root)
                held.callback(root.take_lock().release)
            else:
                held.enter_context(root.shared_lock())
        converted, conversion = look()
        held.enter_context(target_root.shared_lock())
        with ExitStack() as telling:
            for root in roots if execute else ():
                telling.enter_context(telling_of_half_a_change(root))
                _finish_begun(root, target)
            state = DONE if execute else PLANNED
            # The converted member is the last: as long as it is not done, nothing seems to be.
            report, backlog = _plan(converted, target, conversion, state)
            others = [root for root in roots if root is not converted]
            plans = [(root, *_plan_other(root, report, conversion, state)) for root in others]
            plans.append((converted, report, backlog.offsets))
            if execute:
                reports = {each[0]: _move_offsets(*each) for each in plans}
            else:
                reports = {root: planned for root, planned, _offsets in plans}
    return tuple(reports[root] for root in roots)


def _converted_member(
    roots: Sequence[StoreRoot], target: Path, peers: Collection[str]
) -> StoreRoot:
    """The member that ``target`` was made from, once all are there and none has more than it."""
    states = {root: member_state(root) for root in roots}
    _require_group(states, peers)
    recorded, path = _recorded_source(target)
    same = [root for root in roots if log_fingerprint(root) == recorded]
    same.sort(key=lambda root: str(root.path.absolute()) != path)  # copies with their times
    if not same:
        raise PlanError(
            f"{listed(str(root.path) for root in roots)}: none of them is the one that {target} was"
            " converted from, or a broker was started on it since"
        )
    converted = same[0]
    best = states[converted]
    for root, state in states.items():
        assert best is not None
        assert state is not None
        if state.rank > best.rank or not _agree(root, converted, state.log_end):
            raise PlanError(
                f"{root.path}: ends at {state}, and has entries that {converted.path} lacks, which"
                f" {target} was converted from; they would be skipped. Nothing was changed"
            )
    return converted


def _require_group(states: Mapping[StoreRoot, MemberState | None], peers: Collection[str]) -> None:
    """Raise OptionsError unless these are all members of one DLedger or controller group."""
    if not peers and all(state is not None and state.is_controlled for state in states.values()):
        return
    if not peers:
        raise OptionsError(
            f"{listed(str(root.path) for root in states)}: several SOURCEs are the members of one"
            " group. Of DLedger, --broker-conf names a configuration with its dLegerPeers; with a"
            f" controller, each has a file {EPOCHS_NAME}"
        )
    found = sorted("" if state is None else state.member for state in states.values())
    if found != sorted(peers) or any(member_directory(root.path) is None for root in states):
        raise OptionsError(
            f"the group has the members {', '.join(sorted(peers))}, and the stores given are of"
            f" {', '.join(each or 'none' for each in found)}: all are retired together, or none"
        )


def _recorded_source(target: Path) -> tuple[list[list[Any]], str]:
    """The log files that a target was made from, and where the source lay."""
    marker = read_marker(StoreRoot(target))
    try:
        return marker["request"]["source_log"], str(marker["request"]["source"])
    except (KeyError, TypeError) as error:
        raise FormatError("not the report of a conversion of one source", path=target) from error


def _agree(root: StoreRoot, converted: StoreRoot, end: int) -> bool:
    """Whether two logs have the same bytes in front of this offset, as of one index and term."""
    with open_log(root) as one, open_log(converted) as other:
        segment = one.segment_at(end - 1)
        if segment is None:
            return True
        size_bytes = min(_COMPARED_BYTES, end - segment.start_offset)
        try:
            return one.read_at(end - size_bytes, size_bytes) == other.read_at(
                end - size_bytes, size_bytes
            )
        except FormatError:
            return False


def _plan_other(
    root: StoreRoot, converted: RetireReport, conversion: "_Conversion", state: str
) -> tuple[RetireReport, DelayOffsets]:
    """What moves in another member: levels of the converted one, from where they are here; also
    those of which the converted one had delivered everything, and this one does not know it yet.
    Levels that stay there stay here, too: whoever is elected delivers them.
    """
    choice = conversion.settings.offsets
    offsets = read_delay_offsets(root.path, choice)
    moving = []
    for level in conversion.levels.values():
        stored = offsets.offsets.get(level.level, 0)
        if _moves_as_a_whole(conversion, level) and stored < level.to_offset:
            facts = {name: getattr(level, name) for name in _RETIRED}
            moving.append(RetiredLevel(**{**facts, "from_offset": stored}))
    state = state if moving else NOTHING
    report = attrs.evolve(converted, source=str(root.path), state=state, levels=tuple(moving))
    return report, offsets


def _finish_begun(root: StoreRoot, target: Path) -> None:
    """Go on where one was stopped. Raises PlanError where that was for another target."""
    if change := _begun(root):
        if change.asked.get("target") != str(target.resolve()):
            other = f"its retirement for {change.asked.get('target')} was stopped"
            raise PlanError(f"{root.path}: {other}; finish or roll back that first")
        put_offsets(root, change)
        change.write(CHANGE_DONE)


def _move_offsets(root: StoreRoot, report: RetireReport, offsets: DelayOffsets) -> RetireReport:
    """Note the change, then move what the report says."""
    if not report.levels:
        return report
    ends, now_ms = read_ends(root), SystemClock().now_ms()
    change = begin_change(
        root,
        kind=RETIRE,
        now_ms=now_ms,
        before=ends,
        after=ends,
        offsets_after=moved_offsets(offsets, report.offsets, now_ms),
        asked={"target": str(Path(report.target).resolve())},
        report=report.as_json(),
    )
    put_offsets(root, change)
    change.write(CHANGE_DONE)
    return attrs.evolve(report, backup=str(change.directory))


def _begun(root: StoreRoot) -> Change | None:
    """A retirement that was stopped in the middle. Raises PlanError for another change that was."""
    change = unfinished_change(root)
    if change is None:
        return None
    if change.kind != RETIRE or change.state != BEGUN:
        raise PlanError(
            f"{root.path}: {change.kind} was stopped while it was {change.state}."
            f" {describe_unfinished_change(root)}"
        )
    refuse_moved(root, change)
    return change


# --- what the target says -------------------------------------------------------------------------


@attrs.frozen
class _Conversion:
    """A target's report of its conversion; ``in_target`` counts the messages of all sources."""

    path: Path
    settings: ConversionSettings
    levels: Mapping[int, LevelReport]
    source_log: tuple[tuple[str, int, int, int], ...]
    in_target: int

    @classmethod
    def read(cls, target: StoreRoot, source: StoreRoot) -> "_Conversion":
        """Raises SourceError, also for a store that the target was not made from, FormatError."""
        settings = read_settings(target, source)
        path = target.own / CONVERSION_NAME
        marker = read_marker(target)
        facts = share_of(marker, source, path)
        try:
            levels = {level.level: level for level in map(_level_report, facts["levels"])}
            log = tuple(
                (str(name), int(size), int(modified_ns), int(first_head))
                for name, size, modified_ns, first_head in facts["request"]["source_log"]
            )
            in_target = int(marker["converted"])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError("not the report of a conversion", path=path) from error
        return cls(path, settings, levels, log, in_target)


def _plan(
    root: StoreRoot, target: Path, conversion: _Conversion, state: str
) -> tuple[RetireReport, LevelBacklog]:
    _require_same_log(root, target, conversion)
    settings = conversion.settings
    if not root.was_stopped_cleanly and not settings.after_crash:
        raise UncleanStoreError(f"{root.abort}: a broker was started on it since, or still runs")
    table = settings.level_table
    backlog = read_backlog(
        root.path,
        offsets_choice=settings.offsets,
        level_table=None if table is None else DelayLevels.parse(table),
        after_crash=settings.after_crash,
        whole_log=settings.whole_log,
    )
    moving, stays = [], {}
    for counts in backlog.counts:
        level_report = conversion.levels.get(counts.level)
        if level_report is None:
            raise _not_this_source(root, target, counts.level, "is not in its report")
        if counts.queued == 0 and counts.from_queue_offset == level_report.to_offset:
            continue  # it is retired
        if not _moves_as_a_whole(conversion, level_report) or not level_report.queued:
            stays[counts.level] = counts.pending
            continue
        _require_same(root, target, counts, level_report)
        moving.append(RetiredLevel(**{name: getattr(level_report, name) for name in _RETIRED}))
    return _report(root, target, state, moving, stays), backlog


def _report(
    root: StoreRoot, target: Path, state: str, moving: list[RetiredLevel], stays: dict[int, int]
) -> RetireReport:
    return RetireReport(
        source=str(root.path),
        target=str(target),
        state=state if moving else NOTHING,
        levels=tuple(moving),
        stays={level: pending for level, pending in stays.items() if pending},
    )


def _require_same_log(root: StoreRoot, target: Path, conversion: _Conversion) -> None:
    """Raise PlanError for other log files than the target was made from.

    Many stores share names and lengths; first records identify a store, and times its state.
    """
    files = tuple(map(tuple, log_fingerprint(root)))
    recorded = conversion.source_log
    if files == recorded:
        return
    not_the_one = f"{root.path}: its log is not the one that {target} was converted from"
    if was_converted_in_place(root):
        raise PlanError(f"{not_the_one}: this store was converted in place")
    if [file[:2] for file in files] != [file[:2] for file in recorded]:
        raise PlanError(
            f"{not_the_one} (names or lengths of its files differ): another store, or a broker was"
            " started on it since"
        )
    pairs = list(zip(recorded, files, strict=True))
    if others := sum(before[3] not in (0, now[3]) for before, now in pairs):
        raise PlanError(
            f"{not_the_one}: another store"
            f" ({counted(others, 'of its files begins', 'of its files begin')} with other records)"
        )
    old = [before for before, now in pairs if before != now]
    with open_log(root) as log:
        paths = {each.path.name: each.path for each in log.segments}
    touches = [
        f"  touch -d @{ns // 10**9}.{ns % 10**9:09d} {shell_word(str(paths[name]))}"
        for name, _size, ns, _first_head in old
    ]
    why = (
        f"{not_the_one}, as it was then (its files begin with the same records, and the times of"
        f" {len(old):,} differ): a copy without its times, or a broker was started on it since"
    )
    how = (
        "copy it anew with `cp -a`; or, if you know that no broker ran on it, give its files their"
        " times:"
    )
    lines = [why, how, *touches[:_LISTED_TOUCHES]]
    if len(touches) > _LISTED_TOUCHES:
        lines.append(f"  and so on; {target}/delaywheel/{CONVERSION_NAME} has them all")
    raise PlanError("\n".join(lines))


def _moves_as_a_whole(conversion: _Conversion, report: LevelReport) -> bool:
    """Whether a level was converted as a whole. Raises LeftBehindError where it was in part."""
    taken = report.converted + report.quarantined
    if report.skipped and taken:
        out = counted(report.skipped, "of its messages was", "of its messages were")
        raise LeftBehindError(
            f"level {report.level}: {out} left out (--only-topic), among"
            f" {counted(taken, 'converted message')}: moving its offset would lose what was left"
            " out; nothing was changed"
        )
    chosen = conversion.settings.only_levels
    is_chosen = not chosen or report.level in chosen
    return is_chosen and not report.skipped


def _require_same(root: StoreRoot, target: Path, counts: LevelCounts, report: LevelReport) -> None:
    """Raise PlanError unless a level of the source still holds what the target was made from."""
    counted_now = {
        "from_offset": counts.from_queue_offset,
        "to_offset": counts.to_queue_offset,
        "delay_ms": counts.delay_ms,
        **{name: getattr(counts, name) for name in _COUNTS},
    }
    for name, value in counted_now.items():
        if (was := getattr(report, name)) != value:
            raise _not_this_source(root, target, counts.level, f"{name} is {value}, and was {was}")
    if counts.not_in_queue:
        from_log = counted(counts.not_in_queue, "message was", "messages were")
        raise SourceError(
            f"{root.path}: of level {counts.level}, {from_log} converted from the log alone. No"
            " delivery offset can move past that: never start a broker on this store"
        )


def _not_this_source(root: StoreRoot, target: Path, level: int, what: str) -> PlanError:
    return PlanError(
        f"{root.path}: is not what {target} was converted from: level {level}: {what}; nothing was"
        " changed"
    )


def _level_report(facts: Mapping[str, Any]) -> LevelReport:
    values = {"before_queue": 0, "neutral": 0, **facts}  # older reports do not have these counts
    return LevelReport(
        **{field.name: int(values[field.name]) for field in attrs.fields(LevelReport)}
    )
