"""Run a local HTTP server whose routes answer JSON requests with JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@contextmanager
def answering(routes: Mapping[str, Callable[[Body], Body]]) -> Iterator[str]:
    """Yield the address of a server with these routes. A route that raises an error closes the
    connection without an answer."""

    class Routes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(routes[self.path](body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Routes)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])  # poll interval
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
