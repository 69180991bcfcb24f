"""The engine behind a server: token ids there and back over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cuagent.training.engine import EngineError, Request, Sampled, ServerEngine


class Completions(BaseHTTPRequestHandler):
    """Continues [.., n] with n+1, n+2, ... as a server with `return_token_ids` answers."""

    ids = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["return_token_ids"]
        assert body["stop_token_ids"] == [99]
        made = [body["prompt"][-1] + 1 + k for k in range(body["max_tokens"])]
        choice = {
            "finish_reason": "length",
            "text": "whatever",
            "logprobs": {"token_logprobs": [-0.5] * len(made)},
        }
        if self.ids:
            choice["token_ids"] = made
        answer = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_ids_and_logprobs_come_back_in_the_order_of_the_requests(url: str) -> None:
    engine = ServerEngine(url, "m", end=99)
    found = engine.sample([Request((1, n), 3, seed=n) for n in range(10, 20)])
    assert found == [Sampled((n + 1, n + 2, n + 3), (-0.5,) * 3, True) for n in range(10, 20)]


def test_a_server_of_text_only_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Completions, "ids", False)
    with pytest.raises(EngineError, match="gives no token ids"):
        ServerEngine(url, "m", end=99).sample([Request((1,), 3, 0)])


def test_no_server_is_one_line() -> None:
    with pytest.raises(EngineError, match="no usable answer"):
        ServerEngine("http://127.0.0.1:9/v1", "m", end=99).sample([Request((1,), 3, 0)])
