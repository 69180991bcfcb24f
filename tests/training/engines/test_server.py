"""Test the server engine over real HTTP, with the protocols of vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from routes import Body, answering

from cuagent.training.data.segments import RecordError
from cuagent.training.engines.engine import EngineError, Request, Sampled
from cuagent.training.engines.server import ServerEngine
from cuagent.training.settings import PlayConfig, TrainConfig
from cuagent.training.stages import run_ppo

PLAIN = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


class Server:
    """A server that continues [.., n] with n+1, n+2, ..."""

    def __init__(self) -> None:
        self.ids = True
        self.loaded: list[str] = []
        self.url = ""

    def completions(self, body: Body) -> Body:
        assert body["return_token_ids"]
        assert body["stop_token_ids"] == [99]
        assert 0 <= body["seed"] < 1 << 63, "as vLLM requires"
        assert {name: body[name] for name in PLAIN} == PLAIN
        made = [body["prompt"][-1] + 1 + k for k in range(body["max_tokens"])]
        logprobs = {"token_logprobs": [-0.5] * len(made)}
        choice = {"finish_reason": "length", "text": "whatever", "logprobs": logprobs}
        return {"choices": [choice | ({"token_ids": made} if self.ids else {})]}

    def generate(self, body: Body) -> Body:
        asked = body["sampling_params"]
        assert body["return_logprob"]
        assert asked["stop_token_ids"] == [99]
        assert 0 <= asked["sampling_seed"] < 1 << 63
        assert {name: asked[name] for name in PLAIN} == PLAIN
        each = [[-0.5, body["input_ids"][-1] + 1 + k, None] for k in range(asked["max_new_tokens"])]
        finish = {"type": "length", "length": len(each)}
        about = {"finish_reason": finish} | ({"output_token_logprobs": each} if self.ids else {})
        return {"text": "whatever", "meta_info": about}

    def update(self, body: Body) -> Body:
        self.loaded.append(body["model_path"])
        return {"success": body["flush_cache"] and "gone" not in body["model_path"], "message": "?"}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    routes = {
        "/v1/completions": server.completions,
        "/generate": server.generate,
        "/update_weights_from_disk": server.update,
    }
    with answering(routes) as server.url:
        yield server


@pytest.mark.parametrize("form", ["/v1", "/generate"])
def test_results_keep_order_of_requests(server: Server, form: str) -> None:
    engine = ServerEngine(server.url + form, "m", end=99)
    # The largest setting `seed` leads to seeds of requests of 72 bits.
    found = engine.sample([Request((1, n), 3, seed=n << 68) for n in range(10, 20)])
    assert found == [Sampled((n + 1, n + 2, n + 3), (-0.5,) * 3, True) for n in range(10, 20)]


@pytest.mark.parametrize("form", ["/v1", "/generate"])
def test_server_without_token_ids_is_refused(server: Server, form: str) -> None:
    server.ids = False
    with pytest.raises(EngineError, match="returned no token ids"):
        ServerEngine(server.url + form, "m", end=99).sample([Request((1,), 3, 0)])


def test_unreachable_server_is_named() -> None:
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9.*no valid answer"):
        ServerEngine("http://127.0.0.1:9/v1", "m", end=99).sample([Request((1,), 3, 0)])


def test_server_that_closes_connection_is_named() -> None:
    with answering({}) as url, pytest.raises(EngineError, match="no valid answer"):
        ServerEngine(url + "/v1", "m", end=99).sample([Request((1,), 3, 0)])


def test_server_loads_new_weights_or_raises(server: Server, tmp_path: Path) -> None:
    engine = ServerEngine(server.url + "/generate", "m", end=99)
    engine.load(tmp_path)
    assert server.loaded == [str(tmp_path)]
    with pytest.raises(EngineError, match="update_weights_from_disk"):
        engine.load(tmp_path / "gone")
    with pytest.raises(EngineError, match="only SGLang"):
        ServerEngine(server.url + "/v1", "m", end=99).load(tmp_path)


def test_ppo_refuses_server_that_cannot_reload(tmp_path: Path) -> None:
    settings = replace(TrainConfig(), play=PlayConfig(server="http://127.0.0.1:9/v1"))
    with pytest.raises(RecordError, match="can load new weights"):
        run_ppo(tmp_path, None, tmp_path, tmp_path / "out", settings, "cpu", print)
