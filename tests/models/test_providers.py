"""Test the protocols of the providers over HTTP: requests, streams, faults and greetings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from asking import QUESTION, ask
from provider import Provider, serve
from shares import slow_after

from cuagent.cli.session import open_model
from cuagent.config import Settings, resolve
from cuagent.message import Finish, Message, TokenTrace, ToolCall, Usage
from cuagent.models.anthropic import AnthropicModel
from cuagent.models.endpoint import ANTHROPIC, OPENAI
from cuagent.models.model import ContextOverflow, ModelError, ModelUnavailable
from cuagent.models.openai import OpenAIModel
from cuagent.models.responses import ResponsesModel

QUICK = {"retry_delay": 0.01, "tries": 3, "stall": 60.0}


def openai(provider: Provider, model: str = "gpt-5", **more: Any) -> OpenAIModel:
    endpoint = replace(OPENAI, base_url=f"{provider.url}/v1", **{**QUICK, **more})
    return OpenAIModel(model, endpoint)


def responses(provider: Provider, model: str = "gpt-6.1-sol", **more: Any) -> ResponsesModel:
    endpoint = replace(OPENAI, base_url=f"{provider.url}/v1", **{**QUICK, **more})
    return ResponsesModel(model, endpoint)


def anthropic(provider: Provider, model: str = "claude-sonnet-5", **more: Any) -> AnthropicModel:
    endpoint = replace(ANTHROPIC, base_url=provider.url, **{**QUICK, **more})
    return AnthropicModel(model, endpoint)


def test_time_out_of_the_server_table_overrides_settings() -> None:
    settings = resolve({}, environ={"CUAGENT_MODEL_TIMEOUT": "20m"}, cwd=Path("/"))
    assert _timeout("openai:m", settings) == 1200
    own = replace(settings, endpoints={"openai": {"stall": 9.0}})
    assert _timeout("openai:m", own) == 9
    flag = resolve({"model_timeout": "90s"}, environ={}, cwd=Path("/"))
    assert _timeout("openai:m", replace(flag, endpoints=own.endpoints)) == 90
    assert _timeout("anthropic:m", resolve({}, environ={}, cwd=Path("/"))) >= 600


def _timeout(name: str, settings: Settings) -> float:
    nothing: Any = None
    spoken: Any = open_model(name, nothing, settings)
    assert spoken._client.timeout.read == spoken.endpoint.stall
    return float(spoken.endpoint.stall)


def test_openai_reply_is_assembled_from_the_stream() -> None:
    calls = [
        {"id": "c1", "name": "bash", "arguments": '{"command": "ls -la"}'},
        {"id": "c2", "name": "read", "arguments": '{"path": "mal'},
    ]
    with serve({"text": "Let me look.", "reasoning": "First the files.", "calls": calls}) as p:
        reply, pieces = ask(openai(p))
    message = reply.message
    assert message.content == "Let me look."
    assert message.reasoning == "First the files."
    assert message.tool_calls == tuple(ToolCall(**call) for call in calls)
    assert message.sampled
    assert reply.finish is Finish.TOOL_CALLS
    assert reply.usage == Usage(input=40, cache_read=60, output=20, reasoning=5)
    assert reply.cost == pytest.approx((40 * 1.25 + 60 * 0.125 + 20 * 10) / 1e6)
    assert "".join(text for kind, text in pieces if kind == "text") == "Let me look."
    assert len(pieces) > 4
    sent = p.requests[0]
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["tools"][0]["function"]["name"] == "bash"
    assert [m["role"] for m in sent["messages"]] == ["system", "user"]


def test_openai_token_ids_are_kept() -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": []}] * 2}
    answer = {
        "text": "ab",
        "choice": {"token_ids": [7, 8], "logprobs": logprobs},
        "chunk": {"prompt_token_ids": [1, 2, 3]},
    }
    with serve(answer) as p:
        reply, _ = ask(openai(p, return_tokens=True))
    assert reply.tokens == TokenTrace((1, 2, 3), (7, 8), (-0.5, -0.5))
    assert p.requests[0]["return_token_ids"] is True


def test_openai_token_ids_without_logprobs_give_no_trace() -> None:
    with serve({"text": "ab", "choice": {"token_ids": [7, 8]}}) as p:
        reply, _ = ask(openai(p, return_tokens=True))
    assert reply.tokens is None


def test_openai_history_follows_the_protocol() -> None:
    messages = [
        *QUESTION,
        Message("assistant", "", (ToolCall("c1", "bash", '{"a": "mal'),), reasoning="hm"),
        Message("tool", "out", tool_call_id="c1", data={"secret": 1}),
        Message("assistant", ""),
        Message("user", "half \ud800 a pair"),
    ]
    with serve({"text": "ok"}) as p:
        ask(openai(p), messages)
        ask(openai(p, echo_reasoning=True), messages)
    sent = p.requests[0]["messages"]
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool", "user"]
    call = sent[2]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {"malformed": '{"a": "mal'}
    assert "reasoning_content" not in sent[2]
    assert sent[3] == {"role": "tool", "tool_call_id": "c1", "content": "out"}
    assert sent[4]["content"] == "half ? a pair"
    assert p.requests[1]["messages"][2]["reasoning_content"] == "hm"


ITEMS: dict[str, Any] = {
    "reasoning": "First the files.",
    "text": "Let me look.",
    "calls": [
        {"id": "c1", "name": "bash", "arguments": '{"command": "ls -la"}'},
        {"id": "c2", "name": "read", "arguments": '{"path": "mal'},
    ],
}


def test_responses_reply_is_assembled_from_the_stream() -> None:
    with serve(ITEMS) as p:
        reply, pieces = ask(responses(p))
    message = reply.message
    assert message.content == "Let me look."
    assert message.reasoning == "First the files."
    assert message.tool_calls == tuple(ToolCall(**call) for call in ITEMS["calls"])
    assert reply.finish is Finish.TOOL_CALLS
    assert reply.usage == Usage(input=30, cache_read=60, cache_write=10, output=20, reasoning=5)
    assert reply.cost == pytest.approx((30 * 2 + 60 * 0.1 + 10 * 2.5 + 20 * 10) / 1e6)
    assert "".join(text for kind, text in pieces if kind == "text") == "Let me look."
    sent = p.requests[0]
    assert sent["instructions"] == "Be quick."
    assert sent["input"] == [{"role": "user", "content": "Go."}]
    assert sent["store"] is False
    assert sent["tools"][0]["name"] == "bash"


def test_responses_replays_reasoning_in_order() -> None:
    with serve(ITEMS, {"text": "ok"}) as p:
        model = responses(p)
        first, _ = ask(model)
        stored = json.loads(json.dumps(first.message.provider_state))  # as the log keeps it
        messages = [
            *QUESTION,
            replace(first.message, provider_state=stored),
            Message("tool", "one", tool_call_id="c1"),
            Message("tool", "", tool_call_id="c2", is_error=True),
            Message("user", "hurry"),
        ]
        ask(model, messages)
    sent = p.requests[1]["input"]
    kinds = [item.get("type", item.get("role")) for item in sent]
    outputs = ["function_call_output"] * 2
    assert kinds == ["user", "reasoning", "message", *["function_call"] * 2, *outputs, "user"]
    assert sent[1]["encrypted_content"] == "sealed"
    assert json.loads(sent[4]["arguments"]) == {"malformed": '{"path": "mal'}
    assert sent[5] == {"type": "function_call_output", "call_id": "c1", "output": "one"}
    assert p.requests[0]["prompt_cache_key"] == p.requests[1]["prompt_cache_key"]


def test_responses_report_why_a_reply_ended() -> None:
    with serve({"text": "half", "finish": "length"}) as p:
        reply, _ = ask(responses(p))
    assert reply.finish is Finish.LENGTH
    with serve({"text": "x", "failed": "server_error"}, {"text": "whole"}) as p:
        reply, _ = ask(responses(p))
    assert reply.message.content == "whole"
    wrong = {"failed": "context_length_exceeded", "error": "exceeds the context window"}
    with serve(wrong) as p, pytest.raises(ContextOverflow, match="context_length_exceeded"):
        ask(responses(p))


BLOCKS = [
    {"type": "thinking", "thinking": "First the files.", "signature": "sig-1"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "t1", "name": "bash", "input": '{"command": "ls -la"}'},
    {"type": "thinking", "thinking": "And then.", "signature": "sig-2"},
    {"type": "tool_use", "id": "t2", "name": "read", "input": '{"path": "mal'},
]


def test_anthropic_reply_is_assembled_from_the_stream() -> None:
    with serve({"blocks": BLOCKS}) as p:
        reply, pieces = ask(anthropic(p))
    message = reply.message
    assert message.content == "Let me look."
    assert message.reasoning == "First the files.\nAnd then."
    assert message.tool_calls == (
        ToolCall("t1", "bash", '{"command": "ls -la"}'),
        ToolCall("t2", "read", '{"path": "mal'),
    )
    assert reply.finish is Finish.TOOL_CALLS
    assert reply.usage == Usage(input=30, cache_read=60, cache_write=10, output=20)
    assert reply.cost == pytest.approx((30 * 2 + 60 * 0.2 + 10 * 2.5 + 20 * 10) / 1e6)
    assert ("reasoning", "First t") in pieces
    sent = p.requests[0]
    assert sent["system"][0]["cache_control"] == {"type": "ephemeral"}
    assert sent["tools"][-1]["cache_control"] == {"type": "ephemeral"}


def test_anthropic_replays_blocks_in_order_with_signatures() -> None:
    with serve({"blocks": BLOCKS}, {"blocks": [{"type": "text", "text": "ok"}]}) as p:
        model = anthropic(p)
        first, _ = ask(model)
        stored = json.loads(json.dumps(first.message.provider_state))  # as the log keeps it
        messages = [
            *QUESTION,
            replace(first.message, provider_state=stored),
            Message("tool", "one", tool_call_id="t1"),
            Message("tool", "", tool_call_id="t2", is_error=True),
            Message("user", "hurry"),
        ]
        ask(model, messages)
    sent = p.requests[1]["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == [
        BLOCKS[0],
        BLOCKS[1],
        {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls -la"}},
        BLOCKS[3],
        {"type": "tool_use", "id": "t2", "name": "read", "input": {"malformed": '{"path": "mal'}},
    ]
    assert [b["type"] for b in sent[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert sent[2]["content"][1]["is_error"] is True
    marked = [b for m in sent for b in m["content"] if "cache_control" in b]
    assert len(marked) == 2
    assert "cache_control" in sent[2]["content"][-1]


@pytest.mark.parametrize("make", [openai, responses, anthropic])
class TestFaults:
    ok: ClassVar[dict[str, Any]] = {"text": "fine", "blocks": [{"type": "text", "text": "fine"}]}

    @pytest.mark.parametrize(
        "fault",
        slow_after(
            5,
            [
                {"status": 429},
                {"status": 500},
                {"drop": True},
                {"stall": 2},
                {"garble": b'data: {"type": "\xff\xfe"}\n\n'},
                {"garble": b'event: error\ndata: {"type": "broken\n\n'},
                {"status": 408},
                {"status": 409},
                {"status": 529},
            ],
        ),
        ids=str,
    )
    def test_transient_faults_are_retried(self, make: Any, fault: dict[str, Any]) -> None:
        more = {"stall": 1.0, "tries": 20} if "stall" in fault else {}
        with serve({**self.ok, **fault}, self.ok) as p:
            reply, pieces = ask(make(p, **more))
        assert reply.message.content == "fine"
        # A busy machine may also send the second answer too late.
        assert len(p.requests) == 2 or "stall" in fault
        assert any("next try after" in text and "retrying" not in text for _, text in pieces)
        if "stall" in fault:
            assert any(
                "no byte came for 1 s" in text and "--model-timeout" in text for _, text in pieces
            )

    @pytest.mark.slow
    def test_keep_alive_bytes_prevent_the_time_out(self, make: Any) -> None:
        with serve({**self.ok, "alive": 4.5}) as p:
            reply, _ = ask(make(p, stall=3.0))
        assert reply.message.content == "fine"
        assert len(p.requests) == 1, "the request must not be retried"

    @pytest.mark.slow
    def test_long_thinking_is_awaited_within_the_time_out(self, make: Any) -> None:
        with serve({**self.ok, "silent": 1.5}, self.ok) as p:
            reply, _ = ask(make(p))
            assert len(p.requests) == 1, "the request must not be retried"
        assert reply.message.content == "fine"

    def test_key_repeated_by_the_server_is_redacted(
        self, make: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.setenv(name, "planted-key-123456")
        refused = {"status": 401, "error": "no such key: planted-key-123456"}
        with serve(refused) as p, pytest.raises(ModelError) as refusal:
            ask(make(p))
        assert "planted-key" not in str(refusal.value)

    def test_lasting_fault_fails_after_all_retries(self, make: Any) -> None:
        with serve({"status": 503, "error": "down for repairs"}) as p:
            with pytest.raises(ModelUnavailable, match=r"down for repairs; gave up after 3 tries"):
                ask(make(p))
            assert len(p.requests) == 3

    @pytest.mark.parametrize(
        ("fault", "error", "words"),
        [
            ({"status": 401, "error": "bad key"}, ModelError, "the key in .*_API_KEY was refused"),
            ({"status": 404, "error": "no such model"}, ModelError, "unknown model or address"),
            ({"status": 400, "error": "nonsense"}, ModelError, "refused the request .*nonsense"),
            (
                {"status": 400, "error": "prompt is too long: 300000 tokens"},
                ContextOverflow,
                "too long for the model",
            ),
            (
                {"status": 400, "error": "maximum context length is 8192 tokens"},
                ContextOverflow,
                "too long for the model",
            ),
        ],
    )
    def test_permanent_faults_fail_with_a_clear_error(
        self, make: Any, fault: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        with serve(fault) as p:
            with pytest.raises(error, match=words):
                ask(make(p))
            assert len(p.requests) == 1

    def test_missing_server_fails_with_a_clear_error(self, make: Any) -> None:
        nowhere = Provider([])
        nowhere.url = "http://127.0.0.1:9"
        with pytest.raises(ModelUnavailable, match="gave up after 3 tries"):
            ask(make(nowhere))


def test_transient_and_permanent_errors_in_a_stream_differ() -> None:
    def fault(kind: str) -> dict[str, Any]:
        error = {"type": "error", "error": {"type": kind, "message": "see the type"}}
        return {"blocks": [], "garble": f"event: error\ndata: {json.dumps(error)}\n\n".encode()}

    fine = {"blocks": [{"type": "text", "text": "fine"}]}
    with serve(fault("overloaded_error"), fine) as p:
        reply, _ = ask(anthropic(p))
    assert reply.message.content == "fine"
    with serve(fault("invalid_request_error"), fine) as p, pytest.raises(ModelError):
        ask(anthropic(p))


def test_truncated_stream_is_retried() -> None:
    with serve({"text": "cut", "finish": None}, {"text": "whole"}) as p:
        reply, _ = ask(openai(p))
    assert reply.message.content == "whole"


def test_account_without_credit_is_not_retried() -> None:
    fault = {"status": 429, "error": "insufficient_quota: no credit", "code": "insufficient_quota"}
    with serve(fault) as p:
        with pytest.raises(ModelError, match="no credit"):
            ask(openai(p))
        assert len(p.requests) == 1


@pytest.mark.parametrize("make", [openai, responses, anthropic])
def test_greet_finds_a_refused_key(make: Any) -> None:
    with serve(greeting=401) as p:
        with pytest.raises(ModelError, match="_API_KEY was refused"):
            make(p).greet()
        assert not p.requests


@pytest.mark.parametrize("answer", [403, 404, 500])
def test_greet_ignores_uncertain_errors(answer: int) -> None:
    with serve(greeting=answer) as p:
        openai(p).greet()
        assert p.greeted == ["/v1/models/gpt-5"]


def test_greet_finds_a_missing_server() -> None:
    with serve() as p:
        model = openai(p)
    with pytest.raises(ModelUnavailable, match=r"no server answers at http://127\.0\.0\.1"):
        model.greet()
