# SPDX-License-Identifier: Apache-2.0
"""A gRPC client's program: sends a delayed and an ordinary message to each topic.

It runs beside the packages of the client alone and imports nothing of the project. Its one argument
is a JSON object, and so is the last line that it prints: what became of each send by topic, the
unique key or the refusal.
"""

import json
import sys
import time
from typing import Any

from rocketmq import ClientConfiguration, Credentials, Message, Producer

DELAY_S = 5


def main() -> None:
    asked = json.loads(sys.argv[1])
    configuration = ClientConfiguration(asked["endpoint"], Credentials(), request_timeout=30)
    sent = {topic: send_to(configuration, topic) for topic in asked["topics"]}
    sys.stdout.write(json.dumps(sent) + "\n")


def send_to(configuration: ClientConfiguration, topic: str) -> dict[str, Any]:
    """Send with a producer of its own: one refusal must not stop the other sends."""
    producer = Producer(configuration, (topic,))
    producer.startup()
    due_ms = (int(time.time()) + DELAY_S) * 1000
    outcome = {
        "due_ms": due_ms,
        "delayed": attempt(producer, topic, due_ms),
        "ordinary": attempt(producer, topic, None),
    }
    producer.shutdown()
    return outcome


def attempt(producer: Producer, topic: str, due_ms: int | None) -> dict[str, str]:
    message = Message()
    message.topic = topic
    message.body = b"ordinary" if due_ms is None else b"delayed"
    if due_ms is not None:
        message.delivery_timestamp = due_ms // 1000
    try:
        return {"unique_key": producer.send(message).message_id}
    except Exception as refusal:  # every class of refusal is an answer
        return {"refusal": f"{type(refusal).__name__}: {refusal}"}


if __name__ == "__main__":
    main()
