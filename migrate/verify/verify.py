# SPDX-License-Identifier: Apache-2.0
"""Verify a conversion: read both sides afresh, account for every message, compare every field that
must survive.

Nothing here knows how a target is written. The conversion's own report is believed in its
parameters (now, precision, what was left out); everything else is derived again: what is pending
from the source, by the same ``read_backlog`` that a conversion is planned from, and what will be
delivered from the target's wheel, by walking it as a broker does.
Each side's messages are digested where they lie, by tasks that return only sums; equal sums mean
equal messages, and where they differ the messages are looked up one by one.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from pyspark.sql import SparkSession

from message_store.base.errors import OptionsError
from message_store.files.store_root import StoreRoot
from migrate.progress import Progress, no_progress
from migrate.report.conversion_parameters import ConversionSettings, read_settings
from migrate.report.finished_target import require_pair
from migrate.settings import WHEEL
from migrate.source.warnings import refuse_retired
from migrate.spark.master import require_shared_directory
from migrate.verify.compare import Comparison, compare_sides
from migrate.verify.config import (
    config_problems,
    group_problems,
    metrics_problems,
    overdue_problems,
)
from migrate.verify.entries import BUCKET_COUNT, BUCKETS, DIGEST_IDENTITY
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
    split_aside,
)
from migrate.verify.structure import ReachedMessages
from migrate.verify.tasks import DigestResult, FoundRecords, Side, TopicUse


def some_entries(
    source: SideEntries, target: SideEntries, options: "VerifyOptions"
) -> tuple[SideEntries, SideEntries] | None:
    """The same few of both sides; None where all are to be read: nobody asked for a sample, there
    are no more than that, or the sides do not even count the same.
    """
    count = len(source.entries)
    if options.read_only is None or source.topics or len(target.entries) != count:
        return None
    if options.read_only >= count:
        return None
    chosen = np.random.default_rng(options.seed).permutation(count)[: options.read_only]
    chosen.sort()
    return (
        attrs.evolve(source, entries=source.entries[chosen]),
        attrs.evolve(target, entries=target.entries[chosen]),
    )


def is_alike(totals: dict[Side, DigestResult]) -> bool:
    """Whether both sides have the same messages, and nobody complains of one."""
    source, target = totals["source"], totals["target"]
    return bool((source.buckets == target.buckets).all()) and not target.complaints


DEFAULT_SAMPLE = 200
DEFAULT_LISTED = 100
_NO_WINDOW_SLOTS = 1 << 40
"""A hierarchical wheel rolls nothing."""


@attrs.frozen
class VerifyOptions:
    """How to verify: ``sample`` messages are looked up with the scalar codec, ``listed`` of each
    kind of difference are named, ``seed`` chooses the sample and the hashes, ``scratch`` is a
    directory that all workers see under the same path (needed beyond one machine). ``read_only``
    messages of each source are read and the others counted; None reads all.
    """

    sample: int = DEFAULT_SAMPLE
    listed: int = DEFAULT_LISTED
    read_only: int | None = None
    seed: int = 1
    scratch: Path | None = None


def verify(
    source: Path,
    target: Path,
    *,
    spark: SparkSession | None,
    options: VerifyOptions | None = None,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Account for every pending message of ``source`` in ``target``; of a target that several
    sources were merged into, for those of this one.

    Without a session the work is done in this process. Damage in the target is reported, never
    raised. Raises SourceError when either is no store that can be read, or when ``target`` was not
    made by a conversion of this source, or when a broker runs on one of them; FormatError when the
    conversion's own report is damaged; OptionsError for a cluster without ``scratch``.
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
    spark: SparkSession | None,
    options: VerifyOptions | None = None,
    progress: Progress = no_progress,
) -> list[VerifyReport]:
    """As :func:`verify`, for each of several sources of one target, which is read once.

    Raises OptionsError besides for several sources of a target that was made from one.
    """
    options = options or VerifyOptions()
    if spark is not None:
        require_shared_directory(spark.sparkContext.master, options.scratch, "--scratch")
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
            reading = beside.submit(read_target, target_root, asked[0])
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
    spark: SparkSession | None,
    options: VerifyOptions,
    progress: Progress,
    topics_so_far: dict[str, TopicUse] | None = None,
) -> VerifyReport:
    """As :func:`verify`, with what is pending and what the wheel leads to already read.

    The uses of topics are added to ``topics_so_far``, where all messages are read.
    """
    jobs = digest_jobs(spark, settings, options, progress)
    wanted, aside, strangers = split_aside(pending, source_root, settings)
    ours, theirs = _sides(wanted, reached, source_root, target_root, settings)
    if (few := some_entries(ours, theirs, options)) is not None:
        totals = jobs.run("digest a sample", few)
        if is_alike(totals):
            return _sample_report(
                totals, few[1], reached, source_root, target_root, settings, len(wanted), len(aside)
            )
    sampled = _sample(jobs, ours, options)
    identities = tuple(int(one) for one in np.unique(sampled.digests[:, DIGEST_IDENTITY]))
    totals = jobs.run("digest", [ours, theirs], identities=identities)
    compared = compare_sides(jobs, ours, theirs, totals, kept=options.listed)
    with RecordReader(ours) as source_records, RecordReader(theirs) as target_records:
        topics = topics_of(totals["target"], target_records)
        if topics_so_far is not None:
            _add_uses(topics_so_far, topics)
        problems = [
            *reached.problems,
            *(share_problems(target_root, reached.entries) if settings.share else ()),
            *config_problems(target_root, topics, settings, are_all=settings.share is None),
            *group_problems(target_root, source_root, topics),
            *overdue_problems(totals["target"].overdue),
            *complaint_problems(totals["source"], ours),
            *complaint_problems(totals["target"], theirs),
            *quarantine_problems(jobs, source_root, aside, strangers, settings),
            *sample_problems(sampled, totals["target"].found, source_records, target_records),
        ]
        differences = list_differences(
            compared, source_records, target_records, listed=options.listed
        )
        report = _report(totals, compared, problems)
        return attrs.evolve(
            report,
            quarantined=len(aside),
            sampled=len(sampled),
            **_asked(settings),
            differences=tuple(differences),
        )


def _sides(
    wanted: PendingMessages,
    reached: ReachedMessages,
    source_root: StoreRoot,
    target_root: StoreRoot,
    settings: ConversionSettings,
) -> tuple[SideEntries, SideEntries]:
    """What should be there, and what the wheel leads to."""
    ours = SideEntries(
        "source",
        source_root.commit_log,
        wanted.entries(settings.precision_ms),
        topics=settings.only_topics,
    )
    theirs = SideEntries(
        "target",
        target_root.commit_log,
        own_entries(reached.entries, settings.share),
        settings.commit_log_file_bytes,
    )
    return ours, theirs


def digest_jobs(
    spark: SparkSession | None,
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
    # Both sides together make two tasks a core: few, because a task costs some 15 ms of nothing.
    parallelism = 1 if spark is None else spark.sparkContext.defaultParallelism
    return DigestJobs(spark, options.seed, rules, progress, parallelism, options.scratch)


def _sample(jobs: DigestJobs, source: SideEntries, options: VerifyOptions) -> FoundRecords:
    """Some messages of the source with their digests, found in this process."""
    count = len(source.entries)
    chosen = np.random.default_rng(options.seed).permutation(count)[: options.sample]
    chosen.sort()
    few = attrs.evolve(source, entries=source.entries[chosen])
    everything = np.ones(BUCKETS, np.bool_)
    found = attrs.evolve(jobs, spark=None, parallelism=1).run("sample", [few], buckets=everything)
    records = found["source"].found
    return attrs.evolve(records, numbers=chosen[records.numbers])


def topics_of(result: DigestResult, target: RecordReader) -> dict[str, TopicUse]:
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


def _asked(settings: ConversionSettings) -> dict[str, Any]:
    """What the conversion was about, for the report."""
    names = ("only_levels", "only_topics", "levels_only", "whole_log")
    return {name: getattr(settings, name) for name in names}


def _sample_report(
    totals: dict[Side, DigestResult],
    target: SideEntries,
    reached: ReachedMessages,
    source_root: StoreRoot,
    target_root: StoreRoot,
    settings: ConversionSettings,
    wanted: int,
    aside: int,
) -> VerifyReport:
    """What a sample that is in order tells: all that was counted is there, and these are right."""
    with RecordReader(target) as records:
        topics = topics_of(totals["target"], records)
    problems = [
        *reached.problems,
        *(share_problems(target_root, reached.entries) if settings.share else ()),
        *config_problems(target_root, topics, settings, are_all=False),
        *group_problems(target_root, source_root, topics),
        *overdue_problems(totals["target"].overdue),
    ]
    read = len(target.entries)
    return VerifyReport(
        converted=read,
        missing=0,
        unexpected=0,
        different=0,
        quarantined=aside,
        only_counted=wanted - read,
        **_asked(settings),
        problems=tuple(problems),
    )


def _report(
    totals: dict[Side, DigestResult], compared: Comparison, problems: list[Problem]
) -> VerifyReport:
    readable = int(totals["source"].buckets[:, BUCKET_COUNT].sum())
    not_there = len(compared.missing)
    return VerifyReport(
        converted=readable - not_there - compared.different,
        missing=not_there + unreadable(totals["source"]),
        unexpected=len(compared.unexpected),
        different=compared.different,
        problems=tuple(problems),
    )
