# SPDX-License-Identifier: Apache-2.0
"""Options of the Spark data sources: words in any case become values, or an error.

Unknown options are refused: a misspelt one would silently do nothing.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from message_store.base.clock import SystemClock
from message_store.base.errors import BadFieldError, OptionsError
from message_store.files.places import Places
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import parse_long
from migrate.settings import TOPIC_TYPES, TargetSettings, read_broker_conf
from migrate.source.places import places_in
from migrate.table.pending_table import TableOptions

_SPARKS_OWN = frozenset({"path", "paths", "basepath"})
_READ = frozenset(
    {"offsets", "aftercrash", "precisionms", "leveltable", "now", "includebody"}
    | {"includeproperties", "pushdown", "brokerconf"}
)
_BROKERS = (
    "timerPrecisionMs",
    "timerRollWindowSlot",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mappedFileSizeTimerLog",
    "maxMessageSize",
    "fileReservedTime",
)
"""Settings of a broker that a store's files depend on; also options, under the same names."""
_WRITE = frozenset(
    {"now", "precisionms", "brokerconf", "topictype", "startdelivertime"}
    | {name.lower() for name in _BROKERS}
)
_TRUTHS = {"true": True, "false": False}

Options = Mapping[str, str]


def read_options(options: Options) -> TableOptions:
    """How to read a store. Raises OptionsError for an unknown or senseless option."""
    values = _known(options, _READ)
    if (offsets := values.get("offsets", "auto")) not in ("auto", "main", "bak", "none"):
        raise OptionsError(f"offsets is auto, main, bak or none, not {offsets!r}")
    try:
        table = values.get("leveltable")
        levels = None if table is None else DelayLevels.parse(table)
    except BadFieldError as error:
        raise OptionsError(f"levelTable: {error}") from error
    now_ms = _number(values, "now")
    return TableOptions(
        now_ms=SystemClock().now_ms() if now_ms is None else now_ms,
        offsets=offsets,
        after_crash=_truth(values, "aftercrash"),
        precision_ms=_number(values, "precisionms"),
        level_table=levels,
        include_body=_truth(values, "includebody"),
        include_properties=_truth(values, "includeproperties", default=True),
    )


def write_options(options: Options) -> tuple[int, TargetSettings]:
    """Reference time and settings of a new wheel. Raises OptionsError, SourceError."""
    values = _known(options, _WRITE)
    conf = read_broker_conf(Path(values["brokerconf"])) if "brokerconf" in values else {}
    conf |= {name: values[name.lower()] for name in _BROKERS if name.lower() in values}
    clock_ms = SystemClock().now_ms()
    now_ms = _number(values, "now") or clock_ms
    if now_ms > clock_ms:
        raise OptionsError("now is later than this machine's clock: a broker would skip slots")
    if (topic_type := values.get("topictype", "mixed")) not in TOPIC_TYPES:
        raise OptionsError(f"topicType is {', '.join(TOPIC_TYPES)}, not {topic_type!r}")
    settings = TargetSettings.from_conf(conf, _number(values, "precisionms"))
    return now_ms, attrs.evolve(settings, topic_type=topic_type)


def takes_start_deliver_time(options: Options) -> bool:
    """Whether __STARTDELIVERTIME is a due time where a row has no other. Raises OptionsError."""
    return _truth(_known(options, _WRITE), "startdelivertime")


def source_of(options: Options) -> tuple[Path, Places]:
    """The one store that is read, and where its parts lie, as its broker's configuration
    (`brokerConf`) says. Raises OptionsError, SourceError.
    """
    path, values = path_of(options), _known(options, _READ)
    conf = read_broker_conf(Path(values["brokerconf"])) if "brokerconf" in values else {}
    return path, places_in(path, conf)


def path_of(options: Options) -> Path:
    """The path of the one store. Raises OptionsError for none, or several."""
    if "path" not in options:
        raise OptionsError("the directory of one store is wanted, as load(path) or save(path)")
    path = options["path"].removeprefix("file://")
    if path.startswith("file:/"):  # as Hadoop writes it
        path = path.removeprefix("file:")
    if "://" in path:
        raise OptionsError(f"{path}: a store is a directory that all workers see, not a URL")
    return Path(path).absolute()


def wants_pushdown(options: Options) -> bool:
    """Whether filters shall be taken over from Spark."""
    return _truth(_known(options, _READ), "pushdown")


def _known(options: Options, names: Iterable[str]) -> dict[str, str]:
    values = {key.lower(): value for key, value in options.items()}
    if unknown := sorted(set(values) - set(names) - _SPARKS_OWN):
        raise OptionsError(f"no such option: {unknown[0]}; there are {', '.join(sorted(names))}")
    return values


def _truth(values: Options, name: str, *, default: bool = False) -> bool:
    text = values.get(name, str(default)).lower()
    if text not in _TRUTHS:
        raise OptionsError(f"{name} is true or false, not {text!r}")
    return _TRUTHS[text]


def _number(values: Options, name: str) -> int | None:
    if name not in values:
        return None
    try:
        return parse_long(values[name])
    except BadFieldError as error:
        raise OptionsError(f"{name} is a number, not {values[name]!r}") from error
