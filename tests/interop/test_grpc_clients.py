# SPDX-License-Identifier: Apache-2.0
"""gRPC clients of a 5.x proxy on a converted store: they go on sending delayed messages to its
topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.account import once
from tests.interop.conftest import MakeBroker
from tests.interop.generated import generate
from tests.interop.judge import Judge
from tests.interop.ours import delaywheel, write_settings
from tests.interop.proxy import Proxy, lacking, send_by_grpc
from tests.interop.stages import SMALL_FILES, now_ms

VERSION: Final = "5.5.0"
MESSAGES: Final = 60
HOUR_MS: Final = 3_600_000

pytestmark = [pytest.mark.nightly, pytest.mark.interop(VERSION)]


@pytest.fixture(autouse=True, scope="module")
def client() -> None:
    """Skip also in CI: a registry that cannot be reached says nothing about the project."""
    if reason := lacking(VERSION):
        pytest.skip(reason)


@pytest.mark.parametrize("topic_type", ["mixed", "keep"])
def test_delayed_messages_of_grpc_clients(
    make_broker: MakeBroker, scratch: Path, topic_type: str
) -> None:
    source, target = scratch / f"source-{topic_type}", scratch / f"target-{topic_type}"
    generate(source, MESSAGES, level=5, generated_ms=now_ms() - HOUR_MS)
    conf = write_settings(scratch / f"{topic_type}.conf", SMALL_FILES)
    report = delaywheel(
        "convert", source, target, "--target-conf", conf, "--topic-type", topic_type
    )
    proxy = make_broker(VERSION, target, kind=Proxy, settings={"autoCreateTopicEnable": "false"})
    assert isinstance(proxy, Proxy)
    topics = list(report["topics"])
    judge = Judge(proxy, scratch / f"judge-{topic_type}")
    own = len(topics) * (2 if topic_type == "mixed" else 1)
    with (
        proxy,
        judge.consume(topics, "readers", expect=MESSAGES + own, deadline_s=120) as consumer,
    ):
        sent: Mapping[str, Mapping[str, Any]] = send_by_grpc(proxy, topics)
        received = {each.unique_key: each for each in once(consumer.wait())}
    assert len(received) == MESSAGES + own
    assert len(sent) == len(topics) > 1
    for outcome in sent.values():
        assert outcome["ordinary"]["unique_key"] in received
        if topic_type == "mixed":
            assert received[outcome["delayed"]["unique_key"]].stored_ms >= outcome["due_ms"]
        else:  # a proxy takes a topic without a type for NORMAL: this is what the type is for
            assert "DELAY" in outcome["delayed"]["refusal"], outcome
