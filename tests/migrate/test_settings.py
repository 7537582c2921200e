# SPDX-License-Identifier: Apache-2.0
"""A broker's configuration becomes the settings that a target's files depend on."""

from pathlib import Path
from typing import Any

import pytest

from message_store.base.errors import DelayStoreError, FormatError, OptionsError, SourceError
from migrate.settings import ConvertOptions, TargetSettings, read_broker_conf
from migrate.spark.options import path_of

CONF = """
# a comment = not an entry
! another = one
brokerName = broker-a
 mappedFileSizeCommitLog = 1048576
mappedFileSizeConsumeQueue=6001
timerPrecisionMs=150
maxMessageSize=8388608
no entry at all
fileReservedTime=48
"""


def test_a_configuration_is_read_as_a_broker_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(CONF)
    conf = read_broker_conf(path)
    assert conf["brokerName"] == "broker-a"
    assert "no entry at all" not in conf
    assert not [key for key in conf if key.startswith(("#", "!"))]
    settings = TargetSettings.from_conf(conf)
    assert settings.commit_log_file_bytes == 1 << 20
    assert settings.queue_file_bytes == 6020  # whole units, as a broker rounds
    assert settings.precision_ms == 100  # as a broker snaps it
    assert settings.max_message_bytes == 8 << 20
    assert settings.record_max_bytes == (8 << 20) + 100 - 150  # also when it has rolled
    assert settings.retention_hours == 48


@pytest.mark.parametrize(
    "line", ["timerPrecisionMs: 100", "timerPrecisionMs 100", "timerPre\\\n cisionMs\t=\t100"]
)
def test_a_precision_counts_in_whatever_way_a_broker_reads_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"brokerName=a\n{line}\n")
    assert TargetSettings.from_conf(read_broker_conf(path)).precision_ms == 100


def test_a_configuration_with_which_no_broker_starts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"brokerName=\\u12\n")
    with pytest.raises(FormatError, match=r"broker.conf: a .u without four hexadecimal digits"):
        read_broker_conf(path)


def test_a_file_that_sets_nothing_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("hello world\nand more\n")
    with pytest.raises(FormatError, match=r"broker.conf: not a broker's configuration"):
        read_broker_conf(path)
    path.write_text("# everything is a broker's default\n")
    assert read_broker_conf(path) == {}


def test_what_a_configuration_does_not_say_is_a_broker_s_default() -> None:
    assert TargetSettings.from_conf({}) == TargetSettings()
    assert TargetSettings.from_conf({}, precision_ms=100).precision_ms == 100


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ({"mappedFileSizeCommitLog": "1G"}, "mappedFileSizeCommitLog .* is not a number: '1G'"),
        ({"mappedFileSizeCommitLog": "0"}, "mappedFileSizeCommitLog .* is not positive: 0"),
        ({"timerPrecisionMs": "-100"}, "timerPrecisionMs .* is not positive"),
        ({"timerPrecisionMs": "500"}, "--precision-ms 100 and timerPrecisionMs=500 .* disagree"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(
    conf: dict[str, str], sentence: str
) -> None:
    with pytest.raises(DelayStoreError, match=sentence):
        TargetSettings.from_conf(conf, precision_ms=100)


def test_a_configuration_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file; expected a broker's configuration"):
        read_broker_conf(tmp_path / "broker.conf")


@pytest.mark.parametrize("field", [{"on_bad_record": "ignore"}, {"offsets": "best"}])
def test_an_unknown_choice_is_refused(tmp_path: Path, field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be in"):
        ConvertOptions(source=tmp_path, target=tmp_path, **field)


@pytest.mark.parametrize("text", ["/data/store", "file:/data/store", "file:///data/store"])
def test_a_path_is_the_same_however_spark_writes_it(text: str) -> None:
    assert path_of({"path": text}) == Path("/data/store")


@pytest.mark.parametrize("text", ["hdfs://name/store", "s3a://bucket/store"])
def test_a_url_is_no_path(text: str) -> None:
    with pytest.raises(OptionsError, match="not a URL"):
        path_of({"path": text})
