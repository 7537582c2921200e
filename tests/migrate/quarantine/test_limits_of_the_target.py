# SPDX-License-Identifier: Apache-2.0
"""Messages that are sound, and that one target cannot take: what verification and put-back say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

import cli
from migrate.convert import convert
from migrate.verify.verify import verify
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import build_level_store
from tests.migrate.conversions import SMALL, options_for

GOOD = LevelMessage(level=18, unique_key="GOOD")
LARGE = LevelMessage(level=18, body=bytes(3_000))
TOO_LARGE_FOR_A_FILE = LevelMessage(level=18, body=bytes(5_000))


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


@pytest.mark.parametrize(
    ("odd", "settings"),
    [
        pytest.param(LARGE, {"max_message_bytes": 2_000}, id="maxMessageSize"),
        pytest.param(TOO_LARGE_FOR_A_FILE, {}, id="a file of the log"),
        pytest.param(LevelMessage(level=18, born_host=("::ffff:10.1.2.3", 5)), {}, id="born host"),
        pytest.param(LevelMessage(level=18, store_host=("::ffff:10.1.2.3", 5)), {}, id="its host"),
        pytest.param(LevelMessage(level=18, queue_id=70_000), {}, id="queue id"),
    ],
)
def test_a_record_that_only_this_target_cannot_take_is_rightly_in_quarantine(
    odd: LevelMessage, settings: dict[str, Any], tmp_path: Path
) -> None:
    source = build_level_store(tmp_path / "source", [GOOD, odd]).root
    options = options_for(
        tmp_path, on_bad_record="quarantine", settings=attrs.evolve(SMALL, **settings)
    )
    assert convert(options).total("quarantined") == 1
    report = verify(source, options.target, spark=None)
    assert report.problems == ()
    assert report.is_clean


@pytest.mark.parametrize(
    ("odd", "limit", "why"),
    [
        pytest.param(LARGE, "maxMessageSize=2000", "more than a broker delivers", id="broker"),
        pytest.param(
            TOO_LARGE_FOR_A_FILE,
            "mappedFileSizeCommitLog=4096",
            "longer than a file of the store's log",
            id="file",
        ),
    ],
)
def test_put_back_knows_the_limits_of_its_target_before_it_writes(
    odd: LevelMessage, limit: str, why: str, tmp_path: Path
) -> None:
    source = build_level_store(tmp_path / "source", [GOOD, odd, LARGE]).root
    conf, target = tmp_path / "new.conf", tmp_path / "target"
    conf.write_text(f"brokerName=b\n{limit}\n")
    words = ("--in-process", "--on-bad-record", "quarantine", "--target-conf", conf)
    assert run("convert", source, target, *words).exit_code == cli.DONE
    for _ in range(2):
        result = run("put-back", target, target, "--execute")
        assert isinstance(result.exception, SystemExit), result.output
        assert why in result.output
    checked = run("check", target, "--broker-conf", conf)
    assert "timer-too-large" not in checked.stdout


def test_no_size_near_a_limit_is_held_against_a_conversion(tmp_path: Path) -> None:
    """What a wheel reads has room for its growth: less than the limit is too long, too."""
    bodies = [bytes(size_bytes) for size_bytes in range(1_600, 2_100, 7)]
    messages = [LevelMessage(level=18, unique_key=f"K{len(body)}", body=body) for body in bodies]
    source = build_level_store(tmp_path / "source", messages).root
    options = options_for(
        tmp_path, on_bad_record="quarantine", settings=attrs.evolve(SMALL, max_message_bytes=2_000)
    )
    report = convert(options)
    assert report.total("quarantined") > 10
    assert report.total("converted") > 10
    assert verify(source, options.target, spark=None).is_clean
