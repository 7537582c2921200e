# SPDX-License-Identifier: Apache-2.0
"""The flags that verbs share, and what the flags of a conversion ask for."""

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from delaywheel.terminal.options.places import BROKER_CONF, name_given_places, place_flags
from delaywheel.terminal.options.types import (
    LEVEL_TABLE,
    LEVELS,
    MODE,
    OWNER,
    SETTING,
    TIME,
    TIME_FORMS,
    Decorator,
    Function,
    ParamType,
    Place,
    all_of,
    errors_of_flag,
)
from message_store.base.clock import SystemClock
from message_store.base.errors import BadFieldError, SourceError
from message_store.files.store_root import COMMIT_LOG_FILE_BYTES
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import INT_MAX
from migrate.spark.cluster import DEFAULT_MASTER

if TYPE_CHECKING:
    from migrate.settings import ConvertOptions, TargetSettings

LEVEL_TABLE_KEY = "messageDelayLevel"
PRECISIONS = ("100", "200", "500", "1000")

STORE = Place(path_type=Path, readable=False)  # the store says itself what it lacks


def now_option(meaning: str) -> Decorator:
    """``--now``; the verb gets epoch milliseconds, those of the clock unless given."""
    return click.option(
        "--now",
        "now_ms",
        type=TIME,
        default=lambda: SystemClock().now_ms(),
        show_default="the clock",
        help=f"{meaning} {TIME_FORMS}.",
    )


acting_option = click.option(
    "--now",
    "now_ms",
    type=TIME,
    show_default="the clock",
    help=f"Act as if it were then: {TIME_FORMS}.",
)
"""``--now`` of a verb that opens an engine: None is the clock itself, which goes on."""


def offsets_option() -> Decorator:
    """``--offsets``: which delayOffset.json to believe."""
    return click.option(
        "--offsets",
        type=click.Choice(["auto", "main", "bak", "none"]),
        default="auto",
        show_default=True,
        help="Delivery offsets to use: auto (as a broker chooses), main, bak, or none (everything"
        " in the queues counts as undelivered).",
    )


def execute_option(when: str = "") -> Decorator:
    """``--execute`` of a verb that only shows a plan without it."""
    text = f"{when}Apply the plan. Without this flag the plan is only printed."
    return click.option("--execute", is_flag=True, help=text)


window_options = all_of(
    click.option(
        "--due-after", "due_after_ms", type=TIME, help=f"Due then or later, {TIME_FORMS}."
    ),
    click.option(
        "--due-before", "due_before_ms", type=TIME, help=f"Due before then, {TIME_FORMS}."
    ),
)
"""For ``require_window``."""

stopped_store_options = all_of(
    click.option(
        "--after-crash",
        is_flag=True,
        help="Accept a store that was not stopped cleanly; what was already delivered is left out.",
    ),
    click.option(
        "--level-table",
        type=LEVEL_TABLE,
        help='The broker\'s messageDelayLevel, such as "1s 5s 10s"; else told by the messages.',
    ),
)
"""How a store is read of which a copy is made."""


def require_window(after_ms: int | None, before_ms: int | None) -> None:
    """Raise UsageError for ``--due-after`` and ``--due-before`` with no time between them."""
    if after_ms is not None and before_ms is not None and before_ms <= after_ms:
        raise click.UsageError("--due-before must be later than --due-after")


def spark_options(function: Function) -> Function:
    """``--master`` and ``--conf``; and ``--in-process``: then ``master`` is None."""

    @wraps(function)
    def with_master(
        *args: Any, in_process: bool, master: str, conf: tuple[tuple[str, str], ...], **given: Any
    ) -> Any:
        source = click.get_current_context().get_parameter_source("master")
        if in_process and (conf or source is not ParameterSource.DEFAULT):
            raise click.UsageError("--in-process runs no Spark: it takes no --master and no --conf")
        if in_process and given.get("scratch") is not None:
            raise click.UsageError("--in-process hands nothing over: it takes no --scratch")
        return function(*args, master=None if in_process else master, conf=conf, **given)

    conf = click.option(
        "--conf",
        type=SETTING,
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting for Spark; can be given several times.",
    )
    master = click.option(
        "--master", default=DEFAULT_MASTER, show_default=True, help="Where Spark runs."
    )
    in_process = click.option(
        "--in-process",
        is_flag=True,
        help="Work in this process, on one core, without Spark and Java. The result is the same.",
    )
    return master(conf(in_process(with_master)))


conversion_options = all_of(
    click.option(
        "--now",
        "now_ms",
        type=TIME,
        help=f"Reference time, {TIME_FORMS}. Default: the clock, or the time of the run that is"
        " continued.",
    ),
    click.option(
        "--to",
        type=click.Choice(["wheel", "hierarchy"]),
        default="wheel",
        show_default=True,
        help="What TARGET is for: a 5.x broker's timer wheel, or the index of"
        " HierarchicalWheelStore, on which no broker starts.",
    ),
    click.option(
        "--precision-ms",
        type=click.Choice(PRECISIONS),
        help="The new broker's timerPrecisionMs; 1000 when neither this nor --target-conf says.",
    ),
    click.option(
        "--level-table",
        type=LEVEL_TABLE,
        help='The source broker\'s messageDelayLevel, such as "1s 5s 10s".',
    ),
    click.option(
        BROKER_CONF,
        type=STORE,
        help="The source broker's configuration file, for its messageDelayLevel, and for where its"
        " log and queues lie.",
    ),
    place_flags,
    click.option(
        "--target-conf",
        type=STORE,
        help="The new broker's configuration file, for sizes, precision and roll window.",
    ),
    click.option(
        "--topic-type",
        type=click.Choice(["mixed", "delay", "keep"]),
        default="mixed",
        show_default=True,
        help="What topics of TARGET accept from gRPC clients if SOURCE does not say: all messages"
        " (mixed), only delayed ones (delay), or no delayed ones (keep).",
    ),
    click.option(
        "--on-bad-record",
        type=click.Choice(["fail", "quarantine"]),
        default="fail",
        show_default=True,
        help="With messages that cannot be converted: write nothing, or convert the others and"
        " quarantine these.",
    ),
    click.option(
        "--after-crash",
        is_flag=True,
        help="Accept a store that was not stopped cleanly; what the log shows as delivered is left"
        " out.",
    ),
    offsets_option(),
    click.option(
        "--only-level",
        "only_levels",
        type=click.IntRange(min=1),
        multiple=True,
        help="Only this level; can be given several times.",
    ),
    click.option(
        "--only-topic",
        "only_topics",
        multiple=True,
        help="Only messages for this topic; can be given several times.",
    ),
    click.option(
        "--owner",
        type=OWNER,
        metavar="USER[:GROUP]",
        help="Owner of the target's files; changing the owner requires root.",
    ),
    click.option(
        "--mode",
        type=MODE,
        help="File mode of the target in octal, by default 644. Directories get execute permission"
        " wherever read is set.",
    ),
    click.option(
        "--levels-only", is_flag=True, help="Leave the messages of the source's own wheel behind."
    ),
    click.option(
        "--whole-log",
        is_flag=True,
        help="Look for messages in the whole log whose queue was lost or cut short.",
    ),
)
"""Everything that says what ``convert`` shall do, for ``conversion_request``."""


def said(
    flag: str, kind: ParamType[Any], default: Any, meaning: str, name: str | None = None
) -> Decorator:
    """A flag whose default its help says; ``name`` is its parameter's, unless that of the flag."""
    names = (flag,) if name is None else (flag, name)
    return click.option(*names, type=kind, default=default, show_default=True, help=meaning)


generate_options = all_of(
    said(
        "--body-bytes",
        click.IntRange(2, 256 << 20),  # with 1 some have none, and cannot be delivered
        200,
        "Average length of bodies, none of which is empty.",
    ),
    said("--levels", LEVELS, "1-18", "Levels with messages, as 3,5,7-9; equal shares."),
    said("--topics", click.IntRange(1, 100_000), 8, "Number of topics."),
    said("--seed", click.IntRange(min=0), 0, "Random seed; the same seed makes the same messages."),
    said(
        "--dialect",
        click.Choice(["4.9", "5.x"]),
        "4.9",
        "Version of the broker whose properties and configuration files are written.",
    ),
    said(
        "--commit-log-file-bytes",
        click.IntRange(1024, INT_MAX),
        COMMIT_LOG_FILE_BYTES,
        "The broker's mappedFileSizeCommitLog.",
    ),
)
"""What a made-up store shall look like."""


def conversion_request(
    *,
    level_table: DelayLevels | None,
    broker_conf: Path | None,
    target_conf: Path | None,
    precision_ms: str | None,
    topic_type: str = "mixed",
    owner: tuple[int, int] | None = None,
    mode: int | None = None,
    **given: Any,
) -> "ConvertOptions":
    """What the flags of ``convert`` ask for; also says where the source's log and queues lie."""
    from migrate.settings import ConvertOptions
    from migrate.write.owner import Access

    given = name_given_places(given["source"], broker_conf=broker_conf, **given)
    return ConvertOptions(
        access=Access(owner, mode),
        level_table=given_level_table(level_table, broker_conf),
        settings=_target_settings(target_conf, precision_ms, topic_type),
        **given,
    )


def given_level_table(given: DelayLevels | None, broker_conf: Path | None) -> DelayLevels | None:
    """The source's level table, as typed or from its broker's configuration; None for neither."""
    if given is not None or broker_conf is None:
        return given
    from migrate.settings import read_broker_conf

    with errors_of_flag(BROKER_CONF):
        text = read_broker_conf(broker_conf).get(LEVEL_TABLE_KEY)
        try:
            return None if text is None else DelayLevels.parse(text)
        except BadFieldError as error:
            raise SourceError(f"{broker_conf}: {error}") from error


def _target_settings(
    target_conf: Path | None, precision_ms: str | None, topic_type: str
) -> "TargetSettings":
    """The settings of the broker that will open the target, and what its topics shall say."""
    from migrate.settings import TargetSettings, read_broker_conf

    with errors_of_flag("--target-conf"):
        conf = read_broker_conf(target_conf) if target_conf else {}
        settings = TargetSettings.from_conf(conf, int(precision_ms) if precision_ms else None)
        return attrs.evolve(settings, topic_type=topic_type)
