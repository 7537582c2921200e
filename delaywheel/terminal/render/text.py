# SPDX-License-Identifier: Apache-2.0
"""Results as lines and tables for people: numbers with separators, times with their distance.

Lines are not yet escaped, tables are: ``Output`` escapes each line that it prints.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from message_store.base.printable import counted, iso_time, printable, shell_word, size, when
from message_store.format.delay_levels import format_delay
from message_store.interface.delay_store import Pending
from migrate.report.report import COUNT_NAMES

if TYPE_CHECKING:
    from legacy_levels.generate.store import GeneratedStore
    from migrate.demo import DemoResult
    from migrate.plain.plain import PlainReport
    from migrate.report.report import BadRecord, ConversionPlan, ConversionReport
    from migrate.verify.report import Difference, VerifyReport

ALWAYS_SHOWN = ("pending", "converted", "overdue")
SOMETIMES_SHOWN = ("already_delivered", "neutral", "expired", "skipped", "quarantined")
LISTED_TOPICS = 20
LISTED_DIFFERENCES = 100
LISTED_RECORDS = 20
LISTED_REASONS = 10
UNKNOWN = "?"


def count(number: int | None) -> str:
    """A number with thousands separators; ? for one that is not known."""
    return UNKNOWN if number is None else f"{number:,}"


def level_name(level: int, delay_ms: int | None) -> str:
    """A level with its meaning."""
    return f"level {level} ({UNKNOWN if delay_ms is None else format_delay(delay_ms)})"


def new_table(names: Sequence[str]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", no_wrap=index == 0)
    return table


def add_row(table: Table, *cells: str) -> None:
    """A row of texts, escaped."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


def some(names: Sequence[str], limit: int) -> str:
    """The first names, and how many more there are."""
    more = f", and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def bad_record_line(record: "BadRecord") -> str:
    """A message that cannot be read or converted: where, and why."""
    position = f"queue offset {record.queue_offset}" if record.queue_offset >= 0 else "in no level"
    level = f"level {record.level}, " if record.level else ""
    return f"{level}{position}, log offset {record.commit_log_offset}: {printable(record.reason)}"


def due_span(due_min_ms: int | None, due_max_ms: int | None, now_ms: int) -> str:
    """From when to when messages are due, to follow a comma."""
    if due_min_ms is None:
        return ""
    if due_min_ms == due_max_ms:
        return f", due {when(due_min_ms, now_ms)}"
    until = "" if due_max_ms is None else f" to {when(due_max_ms, now_ms)}"
    return f", due from {when(due_min_ms, now_ms)}{until}"


def title(name: str) -> str:
    """A count's name as a column has it."""
    return name.replace("_", " ")


def pending_line(message: Pending, now_ms: int) -> str:
    """One waiting message."""
    level = "wheel" if message.level is None else f"level {message.level}"
    words = [
        when(message.due_ms, now_ms),
        level,
        f"{message.topic}/{message.queue_id}",
        f"tags {message.tags}" if message.tags else "",
        f"keys {' '.join(message.keys)}" if message.keys else "",
        f"{message.size_bytes:,} bytes at {message.commit_log_offset}",
        message.unique_key or "",
    ]
    return "  ".join(word for word in words if word)


def conversion_head(report: "ConversionReport") -> list[str]:
    """What was converted, from where to where."""
    converted, pending = report.total("converted"), report.total("pending")
    what = f"{converted:,} of {counted(pending, 'pending message')}"
    return [
        f"{report.source} -> {report.target}",
        f"{what} converted, as of {iso_time(report.now_ms)}",
    ]


def plan_lines(plan: "ConversionPlan") -> Iterator[str | Table]:
    """``convert --plan``."""
    report = plan.report
    pending = counted(report.total("pending"), "pending message")
    if plan.begun:
        yield f"{report.target}: a conversion was stopped there; the same command goes on with it"
    yield f"{report.source} -> {report.target}"
    yield (
        f"{report.total('converted'):,} of {pending} would be converted,"
        f" as of {iso_time(report.now_ms)}; nothing is written"
    )
    yield conversion_table(report)
    yield sources_table(report)
    due = due_span(report.due_min_ms, report.due_max_ms, report.now_ms).removeprefix(", ")
    yield from [due] if due else []
    yield from peak_lines(report)
    yield f"slots of {report.precision_ms} ms"
    yield from _topic_lines(report.topics)
    if report.open_before_ms is not None:
        yield f"a broker would have to open it before {when(report.open_before_ms, report.now_ms)}"
    yield f"{size(plan.bytes_needed)} needed on its disk, {size(plan.bytes_free)} free"
    if report.bad_records:
        yield "cannot be converted, as far as is known before writing:"
        yield from _listed(report.bad_records)
    for refusal in plan.refusals:
        yield f"would be refused: {refusal}"


def _topic_lines(topics: Mapping[str, int]) -> Iterator[str]:
    """The topics with the most messages, and how many more there are."""
    if topics:
        by_count = sorted(topics.items(), key=lambda each: (-each[1], each[0]))
        names = [f"{printable(name)} {count:,}" for name, count in by_count]
        yield f"{counted(len(topics), 'topic')}: {some(names, LISTED_TOPICS)}"


def conversion_table(report: "ConversionReport") -> Table:
    """The accounts of a conversion by level, without columns that are 0 everywhere."""
    always = ["pending", "converted", "overdue"]
    shown = [name for name in COUNT_NAMES if name in always or report.total(name)]
    if report.total("queued") == report.total("pending"):
        shown = [name for name in shown if name != "queued"]
    table = new_table(["level", *map(title, shown)])
    for level in report.levels:
        numbers = [count(getattr(level, name)) for name in shown]
        add_row(table, level_name(level.level, level.delay_ms), *numbers)
    table.add_section()
    add_row(table, "all levels", *(count(report.total(name)) for name in shown))
    return table


def sources_table(report: "ConversionReport") -> Table:
    """A row for each of the sources that were merged; empty for one."""
    shown = [*ALWAYS_SHOWN, *(name for name in SOMETIMES_SHOWN if report.total(name))]
    table = new_table(["source", *map(title, shown)])
    for source in report.sources:
        add_row(table, source.source, *(count(source.total(name)) for name in shown))
    return table


def conversion_facts(report: "ConversionReport") -> list[str]:
    """Due times, bytes, seconds, and the quarantine."""
    seconds = report.seconds
    start = f"Spark's start {seconds.spark_start:.1f}, " if seconds.spark_start else ""
    due = due_span(report.due_min_ms, report.due_max_ms, report.now_ms).removeprefix(", ")
    stages = (
        f"{seconds.total:.1f} s: {start}plan {seconds.plan:.1f}, write {seconds.write:.1f},"
        f" seal {seconds.seal:.1f}"
    )
    return [
        *([due] if due else []),
        *peak_lines(report),
        f"{size(report.bytes_read)} read, {size(report.bytes_written)} written in {stages}",
        *quarantine_lines(report),
    ]


def peak_lines(report: "ConversionReport") -> list[str]:
    """The second in which a broker has most to deliver; nothing where that is one message."""
    if report.due is None or report.due.peak_messages < 2:
        return []
    at = when(report.due.peak_ms, report.now_ms)
    return [f"the most due in one second: {report.due.peak_messages:,}, {at}"]


def quarantine_lines(report: "ConversionReport") -> list[str]:
    """The quarantined records, and where their bytes are."""
    if not report.bad_records:
        return []
    where = f"  their raw bytes, and all reasons: {quarantine_path(report.target)}"
    return ["quarantined:", *_listed(report.bad_records), where]


def _listed(records: "Sequence[BadRecord]") -> list[str]:
    """The first records, and how many more there are."""
    lines = [f"  {bad_record_line(record)}" for record in records[:LISTED_RECORDS]]
    if more := len(records) - len(lines):
        lines.append(f"  and {more:,} more")
    return lines


def refused_lines(records: "Sequence[BadRecord]") -> list[str]:
    """Why records cannot be converted, the commonest reason first, and the first of them."""
    if len(records) <= 1:
        return _listed(records)
    alike = Counter(re.sub(r"-?\d+", "N", record.reason) for record in records)
    reasons = [
        f"{counted(number, 'time')}: {reason}"
        for reason, number in alike.most_common(LISTED_REASONS)
    ]
    if more := len(alike) - len(reasons):
        reasons.append(f"and {counted(more, 'other reason')}")
    lines = _listed(records)
    if len(records) > LISTED_RECORDS:
        lines[-1] += " (--json lists them all)"
    return [*reasons, *lines]


def what_next(report: "ConversionReport", clock_ms: int) -> list[str]:
    """What an operator does after a conversion, and must not do."""
    lines = ["What next"]
    stores = [source.source for source in report.sources or (report,)] + [report.target]
    lines.append(f"  check it:  delaywheel verify {' '.join(map(shell_word, stores))}")
    if report.engine == "hierarchy":
        lines.append("  it is for HierarchicalWheelStore, and no broker starts on it: open it with")
        lines.append("  WheelStore first, or convert with --to wheel, to give it to one")
        lines.append("  settings that such a broker would need, which are in")
    else:
        lines.append("  settings that the broker of the target needs, which are in")
    lines.append(f"  {report.target}/delaywheel/broker.conf:")
    lines += [f"    {key}={value}" for key, value in report.broker_conf.items()]
    if report.open_before_ms is not None:
        lines.append(f"  open before {when(report.open_before_ms, clock_ms)}: later,")
        lines.append("  a broker no longer reads what was due first, or deletes the log by its age")
    if report.total("skipped"):
        were = "pending message was", "pending messages were"
        lines.append(f"  {counted(report.total('skipped'), *were)} left out on purpose:")
        lines.append("  what is left out waits only in the source, do not throw it away")
    if report.total("converted"):
        lines.append("  restarting the old broker would deliver the converted messages again")
    return lines


def plain_lines(report: "PlainReport") -> Iterator[str]:
    """What was copied into an ordinary store, for people."""
    queues = counted(report.queues, "queue")
    yield f"{report.source} -> {report.target}"
    yield f"{counted(report.records, 'record')}, {report.entries:,} entries in {queues} copied"
    if report.recovered_entries:
        entries = counted(report.recovered_entries, "entry", "entries")
        yield f"{entries} that no queue had yet added from the log"


def conversion_lines(
    report: "ConversionReport", clock_ms: int, *, was_done: bool = False
) -> Iterator[str | Table]:
    """``convert``; ``was_done`` by an earlier run of the same command."""
    if was_done:
        yield f"{report.target}: this conversion was finished before; nothing was done now"
    yield from conversion_head(report)
    yield conversion_table(report)
    yield sources_table(report)
    yield from conversion_facts(report)
    yield ""
    yield from what_next(report, clock_ms)


def expired_warnings(report: "ConversionReport", clock_ms: int) -> Iterator[str]:
    """That a broker would not deliver the messages of a target, where its wheel has expired."""
    if report.open_before_ms is not None and report.open_before_ms <= clock_ms:
        yield (
            "this target can only be inspected: its wheel has expired, so a broker started on it"
            " would not deliver its messages"
        )


def demo_lines(result: "DemoResult", made_directory: str | None) -> Iterator[str | Table]:
    """``demo``; ``made_directory`` is one that was made for it, which stays."""
    yield f"A store that a real {result.broker} broker left behind, stopped at"
    yield f"{iso_time(result.stopped_ms)}, converted as of that moment:"
    yield ""
    yield from conversion_head(result.report)
    yield conversion_table(result.report)
    yield from conversion_facts(result.report)
    yield ""
    yield "Verification (independent second read of both stores):"
    yield from verification_lines(result.verification, result.target)
    yield ""
    yield "This target can only be inspected: a broker started today would find its slots"
    yield "long past and deliver nothing of them. Look at both sides with"
    yield f"  delaywheel inspect {shell_word(result.source)} --now {result.stopped_ms}"
    yield f"  delaywheel inspect {shell_word(result.target)} --now {result.stopped_ms}"
    if made_directory is not None:
        yield "They stay until you remove them:"
        yield f"  rm -r {shell_word(made_directory)}"


def generated_lines(path: str, made: "GeneratedStore", now_ms: int) -> Iterator[str]:
    """``generate``."""
    pending = counted(made.messages, "message waits", "messages wait")
    levels = sum(map(bool, made.messages_by_level.values()))
    yield f"{path}: {pending} in {counted(levels, 'level')}"
    due = due_span(made.due_min_ms, made.due_max_ms, now_ms)
    yield f"{size(made.commit_log_bytes)} of commit log{due}"


def verification_lines(report: "VerifyReport", target: str) -> Iterator[str]:
    """``verify``: of a target that was opened, nothing that this explains."""
    if report.was_opened:
        yield f"{target} was opened since it was made: delivered and rolled messages have moved."
        yield "A target can be verified only before a broker, or `delaywheel run`, first opens it."
    yield ", ".join(account(report))
    if not report.was_opened:
        for difference in report.differences[:LISTED_DIFFERENCES]:
            yield from difference_lines(difference)
        listed = min(len(report.differences), LISTED_DIFFERENCES)
        more = report.missing + report.unexpected + report.different - listed
        if listed and more > 0:  # a target alone is counted, and nothing of it is named
            yield f"... and {more:,} more; --differences FILE has them"
    for problem in report.unexplained_problems:
        often = f" ({problem.count:,} times)" if problem.count > 1 else ""
        yield f"{problem.where}: {problem.what}{often}"
    if not report.was_opened:
        yield from verdict(report, target)


def account(report: "VerifyReport") -> Iterable[str]:
    """How many messages a verification found in which state, and of how many it read some again."""
    for name in ("converted", "missing", "unexpected", "different", "quarantined"):
        yield f"{getattr(report, name):,} {name}"
    if report.sampled:
        expected = report.converted + report.missing + report.different
        yield f"{report.sampled:,} of {expected:,} sampled"
    if report.only_counted:
        yield f"{report.only_counted:,} only counted"


def verdict(report: "VerifyReport", target: str) -> Iterable[str]:
    """What a verification comes to, said of no more than what it looked at."""
    if not report.is_clean:
        if report.unexpected and not report.converted:
            yield "nothing that waits in the source is in the target: that was made from another"
            yield "store, or the source was retired or used since"
        elif report.missing and not (report.whole_log or report.is_damaged):
            yield "messages came into the source since, or a level queue is lost or shorter:"
            yield "convert anew, in the latter case with --whole-log"
        yield "do not start a broker on this target"
        return
    chosen = [
        f"{name} {', '.join(map(str, values))}"
        for name, values in (("level", report.only_levels), ("topic", report.only_topics))
        if values
    ]
    of = f" of {' and '.join(chosen)}" if chosen else ""
    kept = f"{report.quarantined:,}, which are in {quarantine_path(target)}"
    but = f": all but {kept}" if report.quarantined else ""
    if not report.has_source:
        yield f"every message{of} is there, once, as its record says; give SOURCE to compare them"
        return
    if report.only_counted:
        read = counted(report.converted, "was", "were")
        yield f"{read} read: each is there, once, unchanged and at its time{but}"
        rest = counted(report.only_counted, "was", "were")
        yield f"{rest} counted, and the places in the wheel looked at"
    else:
        yield f"every message{of} is there, once, unchanged and at its time{but}"
    if chosen:
        yield "the other messages were left out on purpose and wait only in the source"
    if report.is_part:
        yield "whether the target's timermetrics counts too many was not looked at: give all of its"
        yield "sources without --sample, or TARGET alone, to know that"
    if report.levels_only:
        yield "messages of the source's own timer wheel were left behind (--levels-only)"


def quarantine_path(target: str) -> str:
    """Where a target keeps what could not be converted."""
    return f"{target}/delaywheel/quarantine"


def difference_lines(difference: "Difference") -> Iterable[str]:
    """One difference that a verification found."""
    positions = [
        ("level", difference.level),
        ("queue offset", difference.queue_offset),
        ("source at", difference.source_offset),
        ("target at", difference.target_offset),
    ]
    where = ", ".join(f"{name} {value}" for name, value in positions if value is not None)
    yield f"{difference.kind}: {difference.topic} {difference.unique_key} ({where})"
    for field in difference.fields:
        yield f"  {field.name}: {field.expected} became {field.found}"
