"""The engine behind a server: token ids there and back over real HTTP, as vLLM and SGLang speak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from routes import Body, answering

from cuagent.training.engine import EngineError, Request, Sampled
from cuagent.training.segments import RecordError
from cuagent.training.server import ServerEngine
from cuagent.training.stages import PlayConfig, TrainConfig, run_ppo

PLAIN = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


class Server:
    """Continues [.., n] with n+1, n+2, ... as servers answer that know token ids."""

    def __init__(self) -> None:
        self.ids = True
        self.loaded: list[str] = []
        self.url = ""

    def completions(self, body: Body) -> Body:
        assert body["return_token_ids"]
        assert body["stop_token_ids"] == [99]
        assert {name: body[name] for name in PLAIN} == PLAIN
        made = [body["prompt"][-1] + 1 + k for k in range(body["max_tokens"])]
        logprobs = {"token_logprobs": [-0.5] * len(made)}
        choice = {"finish_reason": "length", "text": "whatever", "logprobs": logprobs}
        return {"choices": [choice | ({"token_ids": made} if self.ids else {})]}

    def generate(self, body: Body) -> Body:
        asked = body["sampling_params"]
        assert body["return_logprob"]
        assert asked["stop_token_ids"] == [99]
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
def test_ids_and_logprobs_come_back_in_the_order_of_the_requests(server: Server, form: str) -> None:
    engine = ServerEngine(server.url + form, "m", end=99)
    found = engine.sample([Request((1, n), 3, seed=n) for n in range(10, 20)])
    assert found == [Sampled((n + 1, n + 2, n + 3), (-0.5,) * 3, True) for n in range(10, 20)]


@pytest.mark.parametrize("form", ["/v1", "/generate"])
def test_a_server_of_text_only_is_refused(server: Server, form: str) -> None:
    server.ids = False
    with pytest.raises(EngineError, match="returned no token ids"):
        ServerEngine(server.url + form, "m", end=99).sample([Request((1,), 3, 0)])


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9.*no valid answer"):
        ServerEngine("http://127.0.0.1:9/v1", "m", end=99).sample([Request((1,), 3, 0)])


def test_a_server_that_hangs_up_is_named() -> None:
    with answering({}) as url, pytest.raises(EngineError, match="no valid answer"):
        ServerEngine(url + "/v1", "m", end=99).sample([Request((1,), 3, 0)])


def test_new_weights_are_served_or_it_is_said(server: Server, tmp_path: Path) -> None:
    engine = ServerEngine(server.url + "/generate", "m", end=99)
    engine.load(tmp_path)
    assert server.loaded == [str(tmp_path)]
    with pytest.raises(EngineError, match="update_weights_from_disk"):
        engine.load(tmp_path / "gone")
    with pytest.raises(EngineError, match="only SGLang"):
        ServerEngine(server.url + "/v1", "m", end=99).load(tmp_path)


def test_ppo_refuses_a_server_that_keeps_its_weights(tmp_path: Path) -> None:
    settings = replace(TrainConfig(), play=PlayConfig(server="http://127.0.0.1:9/v1"))
    with pytest.raises(RecordError, match="can load new weights"):
        run_ppo(tmp_path, None, tmp_path, tmp_path / "out", settings, "cpu", print)
