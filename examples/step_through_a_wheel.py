# SPDX-License-Identifier: Apache-2.0
"""The five services of RocketMQ's timer wheel, stepped one after the other.

Two messages for the same slot, and a delete marker for the first. Each line is a step of a service:
how long its thread would wait then, and how many requests the three queues hold. Prints::

    now  0.2 s
      TimerEnqueueGetService          waits    0 ms    3 0 0
      TimerEnqueuePutService          waits    0 ms    0 0 0
      TimerEnqueueGetService          waits  100 ms    0 0 0
      TimerDequeueGetService          waits  100 ms    0 0 0
    now  3.0 s
      TimerEnqueuePutService          waits   10 ms    0 0 0
      TimerDequeueGetService          waits    0 ms    0 0 0
      TimerDequeueGetService          waits    0 ms    0 0 0
      TimerDequeueGetService          waits 1000 ms    0 1 0
      TimerDequeueGetMessageService   waits    0 ms    0 0 0
      TimerDequeueGetService          waits 1000 ms    0 1 0
      TimerDequeueGetMessageService   waits    0 ms    0 0 1
      TimerDequeuePutMessageService   waits    0 ms    0 0 0
      TimerDequeueGetService          waits    0 ms    0 0 0
    orders: [b'ship 43']
"""

from delaywheel import AtMs, ManualClock, Message
from timer_wheel.reference.store import ReferenceWheelStore

START_MS = 1_793_000_000_000
MARKER = {"TIMER_DELIVER_MS": str(START_MS + 2_500), "TIMER_DEL_UNIQKEY": "42"}
clock = ManualClock(START_MS)


def step(service: str) -> None:
    """Step one service of five, and show the queues."""
    [chosen] = [each for each in store.timers.services if type(each).__name__ == service]
    waits_ms, timers = chosen.step(), store.timers
    held = len(timers.enqueue_put_queue), len(timers.dequeue_get_queue)
    print(f"  {service:31} waits {waits_ms:4} ms   ", *held, len(timers.dequeue_put_queue))


with ReferenceWheelStore.open("store", clock=clock) as store:
    store.advance(START_MS)  # a new wheel begins a week ago: its empty slots are passed
    store.schedule(Message("orders", b"ship 42", unique_key="42"), AtMs(START_MS + 2_500))
    store.schedule(Message("orders", b"ship 43", unique_key="43"), AtMs(START_MS + 2_900))
    clock.tick(200)
    print("now  0.2 s")
    store.put(Message("orders", b"0", unique_key="42", properties=MARKER))
    for name in ("EnqueueGet", "EnqueuePut", "EnqueueGet", "DequeueGet"):
        step(f"Timer{name}Service")
    clock.tick(2_800)
    print("now  3.0 s")
    step("TimerEnqueuePutService")
    for name in ("Get", "Get", "Get", "GetMessage", "Get", "GetMessage", "PutMessage", "Get"):
        step(f"TimerDequeue{name}Service")
    print("orders:", [message.body for message in store.topic("orders").read(0, 0)])
