# SPDX-License-Identifier: Apache-2.0
"""A delay queue behind HTTP: one process opens the store, and the threads of its requests share it.

``POST`` stores a body for half a second later, ``GET`` receives one. It is acknowledged once its
answer is sent; after a kill it is received again. A thread delivers what is due. Prints::

    stored
    received: order 1
"""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

from delaywheel import AfterMs, Message, SystemClock, consumer_group, open_store, run_store


class Orders(BaseHTTPRequestHandler):
    """Each request has a thread of its own."""

    def do_POST(self) -> None:
        """Store an order; once this is answered, a kill does not lose it."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(store.schedule(Message("orders", body), AfterMs(500)).handle.encode())

    def do_GET(self) -> None:
        """Receive an order; an empty answer where none is due."""
        received = billing.receive("orders", max_messages=1)
        self.answer(b"".join(message.body for message in received))
        billing.ack(*received)

    def answer(self, text: bytes) -> None:
        """Send the whole answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)


def deliver() -> None:
    """Deliver what is due, until told to stop; no signal reaches a thread."""
    run_store(store, SystemClock(), len, stop=stopping.is_set, flush_every_ms=1_000)


with open_store("web", engine="wheel") as store:
    billing, stopping = consumer_group(store, "billing"), threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Orders)
    threads = [threading.Thread(target=work) for work in (server.serve_forever, deliver)]
    for thread in threads:
        thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    print("stored" if urlopen(url, b"order 1").read() else "not stored")
    while not (body := urlopen(url).read()):
        time.sleep(0.05)
    print(f"received: {body.decode()}")
    stopping.set()
    server.shutdown()
    for thread in threads:
        thread.join()
    server.server_close()
