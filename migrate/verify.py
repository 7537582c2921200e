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

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import numpy as np
from pyspark.sql import SparkSession

from message_store.store_root import StoreRoot
from migrate.spark_master import require_shared_directory
from migrate.verify_compare import Comparison, compare_sides
from migrate.verify_config import config_problems, overdue_problems
from migrate.verify_digests import DigestResult, FoundRecords, Side, TopicUse
from migrate.verify_entries import BUCKET_COUNT, BUCKETS, DIGEST_IDENTITY
from migrate.verify_jobs import DigestJobs, Progress, SideEntries
from migrate.verify_listing import (
    RecordReader,
    complaint_problems,
    list_differences,
    sample_problems,
    unreadable,
)
from migrate.verify_pending import PendingMessages, quarantine_problems, split_quarantined
from migrate.verify_report import Problem, VerifyReport
from migrate.verify_settings import ConversionSettings, read_settings
from migrate.verify_source import read_pending
from migrate.verify_structure import ReachedMessages, read_reached

DEFAULT_SAMPLE = 200
DEFAULT_LISTED = 100


def no_progress(_stage: str, _done: int, _total: int) -> None:
    """Say nothing."""


@attrs.frozen
class VerifyOptions:
    """How to verify: ``sample`` messages are looked up with the scalar codec, ``listed`` of each
    kind of difference are named, ``seed`` chooses the sample and the hashes, ``scratch`` is a
    directory that all workers see under the same path (needed beyond one machine).
    """

    sample: int = DEFAULT_SAMPLE
    listed: int = DEFAULT_LISTED
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
    """Account for every pending message of ``source`` in ``target``.

    Without a session the work is done in this process. Damage in the target is reported, never
    raised. Raises SourceError when either is no store that can be read, or when ``target`` was not
    made by a conversion, or when a broker runs on one of them; FormatError when the conversion's
    own report is damaged; OptionsError for a cluster without ``scratch``.
    """
    options = options or VerifyOptions()
    if spark is not None:
        require_shared_directory(spark.sparkContext.master, options.scratch, "--scratch")
    source_root, target_root = StoreRoot(source), StoreRoot(target)
    source_root.require_readable()
    target_root.require_readable()
    settings = read_settings(target_root)
    with source_root.shared_lock(), target_root.shared_lock():
        progress("read", 0, 1)
        with ThreadPoolExecutor(max_workers=1) as beside:
            reading = beside.submit(read_reached, target_root, settings)
            pending = read_pending(source_root, settings)
            reached = reading.result()
        progress("read", 1, 1)
        return compare_stores(
            pending,
            reached,
            source_root,
            target_root,
            settings,
            spark=spark,
            options=options,
            progress=progress,
        )


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
) -> VerifyReport:
    """As :func:`verify`, with what is pending and what the wheel leads to already read."""
    jobs = _jobs(spark, settings, options, progress)
    wanted, aside, strangers = split_quarantined(pending, settings.quarantined)
    ours = SideEntries(
        "source",
        source_root.commit_log,
        wanted.entries(settings.precision_ms),
        topics=settings.only_topics,
    )
    theirs = SideEntries(
        "target", target_root.commit_log, reached.entries, settings.commit_log_file_bytes
    )
    sampled = _sample(jobs, ours, options)
    identities = tuple(int(one) for one in np.unique(sampled.digests[:, DIGEST_IDENTITY]))
    totals = jobs.run("digest", [ours, theirs], identities=identities)
    compared = compare_sides(jobs, ours, theirs, totals, kept=options.listed)
    with RecordReader(ours) as source_records, RecordReader(theirs) as target_records:
        topics = _topics(totals["target"], target_records)
        problems = [
            *reached.problems,
            *config_problems(target_root, topics),
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
            only_levels=settings.only_levels,
            only_topics=settings.only_topics,
            levels_only=settings.levels_only,
            whole_log=settings.whole_log,
            differences=tuple(differences),
        )


def _jobs(
    spark: SparkSession | None,
    settings: ConversionSettings,
    options: VerifyOptions,
    progress: Progress,
) -> DigestJobs:
    rules = (
        settings.now_ms,
        settings.write_time_ms,
        settings.precision_ms,
        settings.roll_window_slots,
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


def _topics(result: DigestResult, target: RecordReader) -> dict[str, TopicUse]:
    """Uses by name, which stands in the record of an example."""
    topics: dict[str, TopicUse] = {}
    for use in result.topics.values():
        message = target.at(use.example_offset)
        if message is not None:
            name = message.real_topic
            topics[name] = topics[name].plus(use) if name in topics else use
    return topics


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
