# SPDX-License-Identifier: Apache-2.0
"""Verify a conversion: read both sides afresh, account for every message, compare every field that
must survive.

Nothing here knows how a target is written. The conversion's own report is believed in its
parameters (reference time, precision, what was left out). The pending messages are derived again
from the source, by the same ``read_backlog`` that a conversion is planned from. The messages to be
delivered are derived from the target's wheel, walked as a broker walks it.
Tasks digest each side's messages and return only sums. Equal sums mean equal messages; where they
differ the messages are compared one by one.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from message_store.base.errors import BadFieldError, OptionsError, SourceError
from message_store.base.printable import shell_word
from message_store.files.array_room import arrays_on_disk
from message_store.files.small_files import is_present, read_small_file
from message_store.files.store_root import StoreRoot
from migrate.progress import Progress, no_progress
from migrate.report.finished_target import (
    WRITTEN_NAME,
    in_place_text,
    refuse_unfinished,
    require_pair,
    was_converted_in_place,
)
from migrate.report.marker import CONVERSION_NAME, ConversionSettings, read_marker, read_settings
from migrate.settings import WHEEL, TargetSettings
from migrate.source.condition import refuse_retired
from migrate.spark.cluster import core_count, require_scratch
from migrate.spark.tasks import VERIFICATION
from migrate.verify.compare import Comparison, compare_sides
from migrate.verify.config import (
    config_problems,
    group_problems,
    metrics_problems,
    overdue_problems,
)
from migrate.verify.digests.entries import BUCKET_COUNT, BUCKETS, DIGEST_IDENTITY
from migrate.verify.found import Found
from migrate.verify.index import read_target
from migrate.verify.jobs import DigestJobs, SideEntries
from migrate.verify.listing import (
    RecordReader,
    complaint_problems,
    list_differences,
    sample_problems,
    unreadable,
)
from migrate.verify.report import Problem, VerifyReport
from migrate.verify.source import (
    PendingMessages,
    are_all_shares,
    own_entries,
    quarantine_problems,
    read_pending,
    share_problems,
    split_quarantined,
)
from migrate.verify.structure import ReachedMessages
from migrate.verify.tasks import DigestResult, Side, TopicUse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_SAMPLE = 200
DEFAULT_LISTED = 100
_NO_WINDOW_SLOTS = 1 << 40
"""A hierarchical wheel rolls nothing."""
_SIZES = ("commit_log_file_bytes", "queue_file_bytes", "timer_log_file_bytes")


@attrs.frozen
class VerifyOptions:
    """How to verify.

    ``sample``: so many messages of the source are also compared with the scalar codec. ``listed``:
    so many differences of each kind are named. ``read_only``: so many messages of each source are
    read and the others counted; None reads all. ``seed`` chooses the samples and the hashes.
    ``scratch`` is a directory that all workers see under the same path; a cluster needs it. What
    has a row a message lies there, or in the system's directory for temporary files.
    """

    sample: int = DEFAULT_SAMPLE
    listed: int = DEFAULT_LISTED
    read_only: int | None = None
    seed: int = 1
    scratch: Path | None = None

    @property
    def scratch_directory(self) -> Path:
        """Where large arrays lie."""
        return self.scratch or Path(tempfile.gettempdir())


def verify(
    source: Path,
    target: Path,
    *,
    spark: "SparkSession | None",
    options: VerifyOptions | None = None,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Account for every pending message of ``source`` in ``target``; of a target that several
    sources were merged into, for those of this one.

    Without a session the work is done in this process. Damage in the target is reported, never
    raised. Raises SourceError for a store that cannot be read, for a target that no conversion of
    this source made, and where a broker runs on one of them; FormatError for a damaged conversion
    report; OptionsError for a cluster without ``scratch``.
    """
    [report] = verify_all([source], target, spark=spark, options=options, progress=progress)
    return report


def require_comparable(source: Path, target: Path) -> None:
    """Raise what :func:`verify` would for what a glance can tell, before Spark: SourceError,
    OptionsError, FormatError.
    """
    require_pair(source, target)
    root, target_root = StoreRoot(source), StoreRoot(target)
    refuse_retired(root, target_root, read_settings(target_root, root).only_levels)


def verify_all(
    sources: Sequence[Path],
    target: Path,
    *,
    spark: "SparkSession | None",
    options: VerifyOptions | None = None,
    progress: Progress = no_progress,
) -> list[VerifyReport]:
    """As :func:`verify`, for each of several sources of one target, which is read once.

    Raises OptionsError besides for several sources of a target that was made from one.
    """
    options = _checked(options, spark)
    with arrays_on_disk(options.scratch_directory):
        return _verify_all(sources, target, spark, options, progress)


def _verify_all(
    sources: Sequence[Path],
    target: Path,
    spark: "SparkSession | None",
    options: VerifyOptions,
    progress: Progress,
) -> list[VerifyReport]:
    roots, target_root = [StoreRoot(source) for source in sources], StoreRoot(target)
    for root in (*roots, target_root):
        root.require_readable()
    asked = [read_settings(target_root, root) for root in roots]
    for root, settings in zip(roots, asked, strict=True):
        refuse_retired(root, target_root, settings.only_levels)
    if len(roots) > 1 and any(settings.share is None for settings in asked):
        raise OptionsError(f"{target}: was made from one source; {len(roots)} are given")
    with ExitStack() as locks:
        for root in (*roots, target_root):
            locks.enter_context(root.shared_lock())
        progress("read", 0, 1)
        with ThreadPoolExecutor(max_workers=1) as beside:
            reading = beside.submit(copy_context().run, read_target, target_root, asked[0])
            first = read_pending(roots[0], asked[0])
            reached = reading.result()
        progress("read", 1, 1)
        reports, topics = [], dict[str, TopicUse]()
        for number, (root, settings) in enumerate(zip(roots, asked, strict=True)):
            pending = read_pending(root, settings) if number else first
            report = compare_stores(
                pending,
                reached,
                root,
                target_root,
                settings,
                spark=spark,
                options=options,
                progress=progress,
                topics_so_far=topics,
            )
            reports.append(report)
        if asked[0].share is None:
            return reports
        shares = [settings.share for settings in asked]
        if options.read_only is not None or not are_all_shares(shares, reached.entries):
            return [attrs.evolve(report, is_part=True) for report in reports]
        if asked[0].engine == WHEEL:
            wrong = metrics_problems(target_root, topics, are_all=True)
            reports[-1] = attrs.evolve(reports[-1], problems=(*reports[-1].problems, *wrong))
    return reports


def compare_stores(
    pending: PendingMessages,
    reached: ReachedMessages,
    source_root: StoreRoot,
    target_root: StoreRoot,
    settings: ConversionSettings,
    *,
    spark: "SparkSession | None",
    options: VerifyOptions,
    progress: Progress,
    topics_so_far: dict[str, TopicUse] | None = None,
) -> VerifyReport:
    """As :func:`verify`, with what is pending and what the wheel leads to already read.

    The uses of topics are added to ``topics_so_far``, where all messages are read.
    """
    wanted, quarantined, unknown_entries = split_quarantined(pending, source_root, settings)
    ours = SideEntries(
        "source", source_root, wanted.entries(settings.precision_ms), topics=settings.only_topics
    )
    theirs = SideEntries(
        "target",
        target_root,
        own_entries(reached.entries, settings.share),
        settings.commit_log_file_bytes,
    )
    jobs = _digest_jobs(spark, settings, options, progress)
    pair = _Pair(jobs, source_root, target_root, settings, reached, options)
    problems = [*quarantine_problems(jobs, source_root, quarantined, unknown_entries, settings)]
    if (sides := _sampled_sides(ours, theirs, options)) is not None:
        report = pair.compare(*sides, problems, {}, are_all=False)
        if report.converted == len(sides[0].entries) and not report.unexpected:
            only_counted = len(wanted) - report.converted
            return attrs.evolve(
                report, quarantined=len(quarantined), sampled=0, only_counted=only_counted
            )
    topics = {} if topics_so_far is None else topics_so_far
    report = pair.compare(ours, theirs, problems, topics, are_all=settings.share is None)
    return attrs.evolve(report, quarantined=len(quarantined))


def _sampled_sides(
    source: SideEntries, target: SideEntries, options: VerifyOptions
) -> tuple[SideEntries, SideEntries] | None:
    """The same few entries of both sides; None where all are to be read.

    That both sides have one order is only assumed: a sample that differs has everything read.
    """
    count = len(source.entries)
    if options.read_only is None or source.topics or len(target.entries) != count:
        return None
    if options.read_only >= count:
        return None
    chosen = _choose(count, options.read_only, options.seed)
    return (
        attrs.evolve(source, entries=source.entries[chosen]),
        attrs.evolve(target, entries=target.entries[chosen]),
    )


def _choose(count: int, most: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Up to ``most`` of ``count`` rows at random, in order."""
    chance = np.random.default_rng(seed)
    return np.sort(chance.choice(count, min(count, most), replace=False, shuffle=False))


@attrs.frozen(eq=False)
class _Pair:
    """A source and a target with all that comparing their messages needs."""

    jobs: DigestJobs
    source_root: StoreRoot
    target_root: StoreRoot
    settings: ConversionSettings
    reached: ReachedMessages
    options: VerifyOptions

    def compare(
        self,
        ours: SideEntries,
        theirs: SideEntries,
        known: Sequence[Problem],
        topics_so_far: dict[str, TopicUse],
        *,
        are_all: bool,
    ) -> VerifyReport:
        """Compare the messages of two sides; ``are_all``: no others count in the target's files."""
        listed = self.options.listed
        sampled = self._sample(ours)
        identities = tuple(int(one) for one in np.unique(sampled["digests"][:, DIGEST_IDENTITY]))
        totals = self.jobs.run("digest", [ours, theirs], identities=identities)
        compared = compare_sides(self.jobs, ours, theirs, totals, kept=listed)
        with RecordReader(ours) as source_records, RecordReader(theirs) as target_records:
            topics = _topics_of(totals["target"], target_records)
            _add_uses(topics_so_far, topics)
            candidates = totals["target"].found
            problems = [
                *self._target_problems(topics, are_all=are_all),
                *overdue_problems(totals["target"].overdue),
                *complaint_problems(totals["source"], ours),
                *complaint_problems(totals["target"], theirs),
                *known,
                *sample_problems(sampled, candidates, source_records, target_records),
            ]
            differences = list_differences(compared, source_records, target_records, listed=listed)
            names = ("only_levels", "only_topics", "levels_only", "whole_log")
            return attrs.evolve(
                _report(totals, compared, problems),
                sampled=len(sampled),
                **{name: getattr(self.settings, name) for name in names},
                differences=tuple(differences),
            )

    def _target_problems(
        self, topics: Mapping[str, TopicUse], *, are_all: bool
    ) -> Iterator[Problem]:
        yield from self.reached.problems
        if self.settings.share:
            yield from share_problems(self.target_root, self.reached.entries)
        yield from config_problems(self.target_root, topics, self.settings, are_all=are_all)
        yield from group_problems(self.target_root, self.source_root, topics)

    def _sample(self, source: SideEntries) -> Found:
        """Some messages of the source with their digests, found in this process."""
        chosen = _choose(len(source.entries), self.options.sample, self.options.seed)
        side = attrs.evolve(source, entries=source.entries[chosen])
        everything = np.ones(BUCKETS, np.bool_)
        jobs = attrs.evolve(self.jobs, spark=None, parallelism=1)
        records = jobs.run("sample", [side], buckets=everything)["source"].found
        records["number"] = chosen[records["number"]]
        return records


def _digest_jobs(
    spark: "SparkSession | None",
    settings: ConversionSettings,
    options: VerifyOptions,
    progress: Progress,
) -> DigestJobs:
    """How the work on the messages of one target is done."""
    rules = (
        settings.now_ms,
        settings.write_time_ms,
        settings.precision_ms,
        settings.roll_window_slots if settings.engine == WHEEL else _NO_WINDOW_SLOTS,
    )
    # Both sides together make two tasks a core: a task costs 50 ms beside its records.
    parallelism = core_count(spark, VERIFICATION)
    return DigestJobs(spark, options.seed, rules, progress, parallelism, options.scratch)


def _checked(options: VerifyOptions | None, spark: "SparkSession | None") -> VerifyOptions:
    """The options, or their defaults. Raises OptionsError for a cluster without ``scratch``."""
    options = options or VerifyOptions()
    if spark is not None:
        require_scratch(spark, options.scratch, "--scratch")
    return options


def _topics_of(result: DigestResult, target: RecordReader) -> dict[str, TopicUse]:
    """Uses by name, which stands in the record of an example."""
    topics: dict[str, TopicUse] = {}
    for use in result.topics.values():
        message = target.at(use.example_offset)
        if message is not None:
            _add_uses(topics, {message.real_topic: use})
    return topics


def _add_uses(topics: dict[str, TopicUse], more: Mapping[str, TopicUse]) -> None:
    for name, use in more.items():
        topics[name] = topics[name].plus(use) if name in topics else use


def _report(
    totals: dict[Side, DigestResult], compared: Comparison, problems: list[Problem]
) -> VerifyReport:
    readable = int(totals["source"].buckets[:, BUCKET_COUNT].sum())
    return VerifyReport(
        converted=readable - compared.missing - compared.different,
        missing=compared.missing + unreadable(totals["source"]),
        unexpected=compared.unexpected,
        different=compared.different,
        problems=tuple(problems),
    )


# --- a target without its source ------------------------------------------------------------------


def verify_alone(
    target: Path,
    *,
    spark: "SparkSession | None",
    options: VerifyOptions | None = None,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Verify a converted store, or one written from a table, without its source.

    Every file is read as a broker reads it, every slot walked, every reached record held against
    its slot. In the report ``converted`` counts messages that would be delivered as their records
    say, ``missing`` those that the conversion or write counted and that no slot leads to. Raises
    SourceError for a store that neither a conversion nor a write has made, and as ``verify`` does.
    """
    options = _checked(options, spark)
    root = StoreRoot(target)
    refuse_unfinished(root)
    root.require_readable()
    settings, counted = _settings_and_count(root)
    with root.shared_lock(), arrays_on_disk(options.scratch_directory):
        progress("read", 0, 1)
        reached = read_target(root, settings)
        progress("read", 1, 1)
        jobs = _digest_jobs(spark, settings, options, progress)
        side = SideEntries("target", root, reached.entries, settings.commit_log_file_bytes)
        result = jobs.run("digest", [side])["target"]
        with RecordReader(side) as records:
            topics = _topics_of(result, records)
        problems: list[Problem] = [
            *reached.problems,
            *config_problems(root, topics, settings),
            *group_problems(root, None, topics),
            *overdue_problems(result.overdue),
            *complaint_problems(result, side),
        ]
    readable = int(result.buckets[:, BUCKET_COUNT].sum())
    return VerifyReport(
        converted=min(readable, counted),
        missing=max(0, counted - readable),
        unexpected=max(0, readable - counted) + unreadable(result),
        different=0,
        has_source=False,
        problems=tuple(problems),
    )


def require_made(target: Path) -> None:
    """Raise SourceError for a store that ``verify_alone`` has nothing to hold against."""
    root = StoreRoot(target)
    refuse_unfinished(root)
    root.require_readable()
    _settings_and_count(root)


def _settings_and_count(root: StoreRoot) -> tuple[ConversionSettings, int]:
    """How the store was made, and how many messages its report counts."""
    if is_present(root.own / CONVERSION_NAME):
        return read_settings(root), _number(read_marker(root), "converted", root)
    path = root.own / WRITTEN_NAME
    content = read_small_file(path)
    if content is None and was_converted_in_place(root):
        raise SourceError(f"{root.path}: {in_place_text(root)}")
    if content is None:
        raise SourceError(
            f"{root.path}: was not converted or written from a table, so no count of messages is"
            f" known; run `delaywheel check {shell_word(str(root.path))}` instead"
        )
    try:
        facts: dict[str, Any] = json.loads(content)
        made = TargetSettings(**facts["settings"])
        now_ms = int(facts["now_ms"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFieldError(f"not the report of a write: {error!r}", path=path) from error
    settings = ConversionSettings(
        now_ms=now_ms,
        precision_ms=made.precision_ms,
        roll_window_slots=made.roll_window_slots,
        **{name: getattr(made, name) for name in _SIZES},
    )
    return settings, _number(facts, "written", root)


def _number(facts: dict[str, Any], name: str, root: StoreRoot) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or value < 0:
        raise BadFieldError(f"{name} is no count", path=root.own, found=repr(value)[:64])
    return value
