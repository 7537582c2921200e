# SPDX-License-Identifier: Apache-2.0
"""A service with four threads, which SIGTERM ends in order, and which a kill does not harm.

``order_service.py serve`` is the service. Without that word the program is its operator: it stores
orders, starts the service, kills it at work, starts it again, and stops it. Prints::

    20 orders stored
    killed at work
    stopped by SIGTERM, exit code 0
    20 orders handled, none is lost
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from delaywheel import AtMs, Message, Received, open_store, run_consumers

HANDLED, ORDERS = Path("handled.txt"), 20


def handle(order: Received) -> None:
    """Work on an order. Returning acknowledges it; after a kill it is received again."""
    time.sleep(0.05)
    with HANDLED.open("a") as file:
        file.write(f"{order.keys[0]}\n")


def serve() -> None:
    """Deliver what is due and handle it, until SIGTERM or Ctrl-C."""
    with open_store("orders") as store:
        run_consumers(store, {("orders", "fulfilment"): handle}, threads=4)


def start_and_wait_for(count: int) -> subprocess.Popen[bytes]:
    """Start the service; returns when so many different orders are handled."""
    service = subprocess.Popen([sys.executable, __file__, "serve"])
    while len(set(HANDLED.read_text().split())) < count and service.poll() is None:
        time.sleep(0.01)
    return service


if "serve" in sys.argv:
    serve()
else:
    with open_store("orders", engine="levels") as store:
        for number in range(ORDERS):
            store.schedule(Message("orders", b"", keys=str(number)), AtMs(0))
    HANDLED.touch()
    print(f"{ORDERS} orders stored")
    service = start_and_wait_for(3)
    service.kill()
    print("killed at work" if service.wait() else "ended by itself")
    service = start_and_wait_for(ORDERS)
    service.send_signal(signal.SIGTERM)
    print(f"stopped by SIGTERM, exit code {service.wait()}")
    print(f"{len(set(HANDLED.read_text().split()))} orders handled, none is lost")
