# SPDX-License-Identifier: Apache-2.0
"""delayOffset.json: which file is believed, what is saved of a damaged one, what is written."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legacy_levels.delay_offsets import (
    DataVersion,
    OffsetsChoice,
    decode_delay_offsets,
    encode_delay_offsets,
    read_delay_offsets,
)
from message_store.base.errors import FormatError, SourceError
from message_store.format.broker_json import ConfigDialect, examine, parse

GOOD = b'{\n\t"offsetTable":{1:10,2:20\n\t}\n}'
OLDER = b'{\n\t"offsetTable":{1:7\n\t}\n}'


def write(root: Path, main: bytes | None, backup: bytes | None) -> Path:
    (root / "config").mkdir(parents=True)
    for name, content in (("delayOffset.json", main), ("delayOffset.json.bak", backup)):
        if content is not None:
            (root / "config" / name).write_bytes(content)
    return root


@pytest.mark.parametrize(
    ("main", "backup", "source", "offsets"),
    [
        (GOOD, OLDER, "main", {1: 10, 2: 20}),
        (GOOD, b"{broken", "main", {1: 10, 2: 20}),
        (b"{}", OLDER, "main", {}),
        (b"null", OLDER, "main", {}),
        (GOOD + b"\0\0", OLDER, "main", {1: 10, 2: 20}),
        (None, OLDER, "bak", {1: 7}),
        (b"", OLDER, "bak", {1: 7}),
        (bytes(51), OLDER, "bak", {1: 7}),
        (GOOD[:20], OLDER, "bak", {1: 7}),
        (GOOD + b"9\n\t}\n}", OLDER, "bak", {1: 7}),
        (b"\xff\xfe\x00", OLDER, "bak", {1: 7}),
        (b'{"offsetTable":{"a":1}}', OLDER, "bak", {1: 7}),
        (b'{"offsetTable":null}', OLDER, "bak", {1: 7}),
        (b'{"offsetTable":{1:null}}', OLDER, "bak", {1: 7}),
        (b'{"offsetTable":{99999999999:1}}', OLDER, "bak", {1: 7}),
        (b'{"offsetTable":{1:1},"dataVersion":5}', OLDER, "bak", {1: 7}),
        (b"[1]", OLDER, "bak", {1: 7}),
        (None, None, "none", {}),
        (b"", None, "none", {}),
        (GOOD[:20], b"", "none", {}),
        (bytes(51), None, "none", {}),
    ],
)
def test_the_file_that_a_broker_would_take_is_taken(
    tmp_path: Path, main: bytes | None, backup: bytes | None, source: str, offsets: dict[int, int]
) -> None:
    found = read_delay_offsets(write(tmp_path, main, backup))
    assert (found.source.value, dict(found.offsets)) == (source, offsets)
    assert bool(found.problems) == (source != "main" or backup == b"{broken")


@pytest.mark.parametrize("main", [None, b"", bytes(9), GOOD[:20]])
@pytest.mark.parametrize("backup", [bytes(9), GOOD[:20], OLDER + b"}", b'{"offsetTable":5}'])
def test_where_a_broker_would_not_start_a_choice_is_asked_for(
    tmp_path: Path, main: bytes | None, backup: bytes
) -> None:
    root = write(tmp_path, main, backup)
    with pytest.raises(SourceError, match=r"delayOffset\.json\.bak: .*choose main, bak or none"):
        read_delay_offsets(root)
    assert dict(read_delay_offsets(root, OffsetsChoice.NONE).offsets) == {}


@pytest.mark.parametrize(
    ("main", "backup", "choice", "offsets"),
    [
        (GOOD, OLDER, "bak", {1: 7}),
        (GOOD, OLDER, "none", {}),
        (GOOD + b"9\n\t}\n}", OLDER, "main", {1: 10, 2: 20}),
        (GOOD[:26], OLDER, "main", {1: 10}),
        (GOOD, OLDER + b"}", "bak", {1: 7}),
    ],
)
def test_a_file_chosen_by_name_is_used_as_far_as_it_can_be_read(
    tmp_path: Path, main: bytes, backup: bytes, choice: str, offsets: dict[int, int]
) -> None:
    assert dict(read_delay_offsets(write(tmp_path, main, backup), choice).offsets) == offsets


@pytest.mark.parametrize("damaged", [None, b"", bytes(9), b"\xff\xfe", b'{"offsetTable":{1:1'])
@pytest.mark.parametrize("choice", ["main", "bak"])
def test_a_chosen_file_that_holds_nothing_is_refused(
    tmp_path: Path, damaged: bytes | None, choice: str
) -> None:
    files = (damaged, GOOD) if choice == "main" else (GOOD, damaged)
    with pytest.raises(SourceError, match=r"no offsets can be read: .*delayOffset"):
        read_delay_offsets(write(tmp_path, *files), choice)


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (None, "not there"),
        (b"", "empty"),
        (bytes(51), "filled with NUL bytes"),
        (GOOD[:26], r"truncated \(at byte 26\)"),
        (GOOD + b"9}", r"followed by other text \(at byte 32\)"),
        (b'{"\xff', "not UTF-8"),
        (b'{"offsetTable":{1:x}}', r"not what a broker writes \(at byte 18\)"),
        (b'{"offsetTable":{"x":1}}', "not a whole number"),
    ],
)
def test_what_is_wrong_is_said_in_words(tmp_path: Path, main: bytes | None, words: str) -> None:
    found = read_delay_offsets(write(tmp_path, main, OLDER))
    assert len(found.problems) == 1
    assert re.search(f"delayOffset.json: {words}", found.problems[0])


def test_every_possible_choice_is_offered_with_its_table(tmp_path: Path) -> None:
    found = read_delay_offsets(write(tmp_path, GOOD[:26], OLDER))
    assert {choice.value: dict(table) for choice, table in found.by_choice().items()} == {
        "main": {1: 10},
        "bak": {1: 7},
        "none": {},
    }


def test_a_level_that_the_table_does_not_name_begins_at_zero(tmp_path: Path) -> None:
    found = read_delay_offsets(write(tmp_path, GOOD, None))
    assert [found.offset_of(level) for level in (1, 2, 3)] == [10, 20, 0]


# --- writing --------------------------------------------------------------------------------------

TEXT_5_3 = (
    '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000123'
    '\n\t},\n\t"offsetTable":{1:9,2:5\n\t}\n}'
)
TEXT_5_5 = (
    '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000123'
    '\n\t},\n\t"offsetTable":{\n\t\t3:5,\n\t\t4:6\n\t}\n}'
)

EMPTY_5_4 = (
    '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":0'
    '\n\t},\n\t"offsetTable":{\n\t\t\n\t}\n}'
)


@pytest.mark.parametrize(
    ("text", "offsets", "dialect", "version"),
    [
        ('{\n\t"offsetTable":{1:10,2:20,3:30\n\t}\n}', {1: 10, 2: 20, 3: 30}, "4.9", None),
        ('{\n\t"offsetTable":{}\n}', {}, "4.9", None),
        (TEXT_5_3, {1: 9, 2: 5}, "5.3", DataVersion(0, 1700000000123, 0)),
        (TEXT_5_5, {3: 5, 4: 6}, "5.5", DataVersion(0, 1700000000123, 1)),
        (
            EMPTY_5_4,
            {},
            "5.4",
            DataVersion(),
        ),
    ],
)
def test_the_texts_of_brokers_are_read_written_and_recognised(
    tmp_path: Path, text: str, offsets: dict[int, int], dialect: str, version: DataVersion | None
) -> None:
    assert encode_delay_offsets(offsets, ConfigDialect(dialect), version) == text.encode()
    found = read_delay_offsets(write(tmp_path, text.encode(), None))
    assert (dict(found.offsets), found.dialect) == (offsets, ConfigDialect(dialect))
    assert found.main.data_version == version


def test_one_level_is_26_bytes_in_4_9() -> None:
    text = encode_delay_offsets({1: 1}, ConfigDialect.ROCKETMQ_4_9)
    assert text.hex() == "7b0a09226f66667365745461626c65223a7b313a310a097d0a7d"


def test_a_hand_written_file_is_nobodys_handwriting(tmp_path: Path) -> None:
    assert read_delay_offsets(write(tmp_path, b'{"offsetTable":{"1":"4"}}', None)).dialect is None


@given(
    st.dictionaries(st.integers(1, 200), st.integers(0, 2**63 - 1)),
    st.sampled_from(list(ConfigDialect)),
)
def test_every_table_is_read_back(offsets: dict[int, int], dialect: ConfigDialect) -> None:
    text = encode_delay_offsets(offsets, dialect)
    assert decode_delay_offsets(parse(text))[0] == offsets


@given(st.binary(max_size=80) | st.text('{}[]:,"offsetTable12').map(str.encode))
def test_any_bytes_are_decoded_or_refused(text: bytes) -> None:
    with suppress(FormatError):
        decode_delay_offsets(examine(text).value)
