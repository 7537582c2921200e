# SPDX-License-Identifier: Apache-2.0
"""An HTTP server for Prometheus: one page, ``/metrics``, in a thread of its own."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from delaywheel.metrics import Metric, prometheus_text
from message_store.base.errors import DelayStoreError, TargetError, reason_of

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT_S = 10

Metrics = Callable[[], Iterable[Metric]]


class _Page(BaseHTTPRequestHandler):
    """Answers one request."""

    timeout = _TIMEOUT_S
    server_version = "delaywheel"
    sys_version = ""

    def __init__(self, metrics: Metrics, *given: object) -> None:
        self._metrics = metrics
        super().__init__(*given)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """The page, or why there is none."""
        if self.path.partition("?")[0] != PATH:
            self._answer(404, f"only {PATH} is here\n")
            return
        try:
            self._answer(200, prometheus_text(self._metrics()))
        except DelayStoreError as error:
            self._answer(503, f"{error}\n")

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, _format: str, *_given: object) -> None:
        """Nothing: standard error is for what goes wrong."""


@contextmanager
def serving(metrics: Metrics, host: str, port: int) -> Iterator[int]:
    """Serve these metrics meanwhile; gives the port, which the system chooses for 0.

    Raises TargetError for an address that cannot be had.
    """
    try:
        server = ThreadingHTTPServer((host, port), partial(_Page, metrics))
    except (OSError, OverflowError) as error:
        raise TargetError(f"--metrics {host}:{port}: {reason_of(error)}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
