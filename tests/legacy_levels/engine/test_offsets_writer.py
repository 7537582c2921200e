# SPDX-License-Identifier: Apache-2.0
"""delayOffset.json and its copy, as each broker version leaves them."""

from pathlib import Path

import pytest

from legacy_levels.delay_offsets import DataVersion, OffsetsWriter, read_delay_offsets
from message_store.format.dialect import Dialect
from tests.independent.raw_files import parse_fastjson

NOW_MS = 1_700_000_000_123

TEXTS = {
    Dialect.ROCKETMQ_4_9: b'{\n\t"offsetTable":{1:10,2:20\n\t}\n}',
    Dialect.ROCKETMQ_5_3: b'{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t'
    b'"timestamp":1700000000123\n\t},\n\t"offsetTable":{1:10,2:20\n\t}\n}',
    Dialect.ROCKETMQ_5_5: b'{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t'
    b'"timestamp":1700000000123\n\t},\n\t"offsetTable":{\n\t\t1:10,\n\t\t2:20\n\t}\n}',
}


def writer(root: Path, dialect: Dialect) -> OffsetsWriter:
    return OffsetsWriter(root, dialect, read_delay_offsets(root), NOW_MS)


@pytest.mark.parametrize("dialect", TEXTS, ids=str)
@pytest.mark.parametrize("is_durable", [True, False])
def test_a_table_is_written_as_the_dialect_has_it(
    tmp_path: Path, dialect: Dialect, is_durable: bool
) -> None:
    one = writer(tmp_path, dialect)
    one.write(one.encode({1: 10, 2: 20}), is_durable=is_durable)
    config = tmp_path / "config"
    assert (config / "delayOffset.json").read_bytes() == TEXTS[dialect]
    assert sorted(path.name for path in config.iterdir()) == ["delayOffset.json"]


@pytest.mark.parametrize("dialect", TEXTS, ids=str)
def test_the_table_before_is_kept_as_bak(tmp_path: Path, dialect: Dialect) -> None:
    one = writer(tmp_path, dialect)
    one.write(one.encode({1: 10, 2: 20}), is_durable=True)
    one.write(one.encode({1: 11}), is_durable=True)
    config = tmp_path / "config"
    assert (config / "delayOffset.json.bak").read_bytes() == TEXTS[dialect]
    text = (config / "delayOffset.json").read_text()
    assert parse_fastjson(text)["offsetTable"] == {"1": 11}


@pytest.mark.parametrize("damage", [b"", b'{"offsetTable":{1:', b"\0" * 40, b"[]"])
def test_a_torn_table_does_not_take_the_place_of_the_whole_one(
    tmp_path: Path, damage: bytes
) -> None:
    """A broker was killed in its write. A stop between our two writes leaves what it can read."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "delayOffset.json").write_bytes(damage)
    (config / "delayOffset.json.bak").write_bytes(TEXTS[Dialect.ROCKETMQ_4_9])
    one = writer(tmp_path, Dialect.ROCKETMQ_4_9)
    one.write(one.encode({1: 11}), is_durable=True)
    assert (config / "delayOffset.json.bak").read_bytes() == TEXTS[Dialect.ROCKETMQ_4_9]
    one.write(one.encode({1: 12}), is_durable=True)
    assert b"1:11" in (config / "delayOffset.json.bak").read_bytes()


def test_every_200_deliveries_make_a_new_version(tmp_path: Path) -> None:
    one = writer(tmp_path, Dialect.ROCKETMQ_5_3)
    one.count(199, NOW_MS + 1)
    one.write(one.encode({}), is_durable=True)
    assert read_delay_offsets(tmp_path).main.data_version == DataVersion(0, NOW_MS, 0)
    one.count(402, NOW_MS + 2)
    one.write(one.encode({}), is_durable=True)
    assert read_delay_offsets(tmp_path).main.data_version == DataVersion(0, NOW_MS + 2, 3)
    later = writer(tmp_path, Dialect.ROCKETMQ_5_5)
    later.count(200, NOW_MS + 9)
    later.write(later.encode({3: 1}), is_durable=True)
    found = read_delay_offsets(tmp_path)
    assert found.main.data_version == DataVersion(0, NOW_MS + 9, 4)
    assert dict(found.offsets) == {3: 1}


def test_a_table_of_4_9_has_no_version(tmp_path: Path) -> None:
    one = writer(tmp_path, Dialect.ROCKETMQ_4_9)
    one.count(1_000, NOW_MS)
    one.write(one.encode({1: 1}), is_durable=True)
    assert (tmp_path / "config/delayOffset.json").read_bytes().hex() == (
        "7b0a09226f66667365745461626c65223a7b313a310a097d0a7d"
    )
