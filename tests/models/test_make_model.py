"""Test how models, servers and prices are found by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from asking import ask  # type: ignore[import-not-found]

from cuagent.message import ToolCall, Usage
from cuagent.models import Endpoint, Price, default_model, endpoints_of, make_model, prices_of
from cuagent.models.endpoint import OPENAI
from cuagent.models.model import ModelError
from cuagent.models.openai import OpenAIModel
from cuagent.models.prices import context_of, cost_of, price_of
from cuagent.models.responses import ResponsesModel


def test_make_model_finds_models_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_model() == "anthropic:claude-sonnet-5-5"
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert default_model() == "openai:gpt-6.1-sol"
    assert isinstance(make_model("openai"), ResponsesModel)
    assert make_model("openai").name == "openai:gpt-6.1-sol"
    monkeypatch.delenv("OPENAI_API_KEY")
    assert default_model() == "expert"
    with pytest.raises(ModelError, match="set OPENAI_API_KEY"):
        make_model("openai:gpt-5")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert isinstance(make_model("openai:local"), OpenAIModel)
    assert make_model("vllm:qwen").name == "vllm:qwen"
    with pytest.raises(ModelError, match="unknown model 'lab:qwen'; use one of"):
        make_model("lab:qwen")
    own = Endpoint("lab", "openai", "LAB_KEY", "http://127.0.0.1:9/v1", needs_key=False)
    made = make_model("lab:qwen", endpoints={"lab": replace(own, price=Price(1, 2, 0, 0))})
    assert made.name == "lab:qwen"


def test_user_servers_and_prices_are_read_and_checked() -> None:
    lab = {"base_url": "http://gpu7/v1", "price": {"input": 1, "output": 2}, "context": 9000}
    made = endpoints_of({"lab": lab, "openai": {"stall": 9.0}})
    assert made["lab"].price == Price(1, 2, 1, 1)
    assert not made["lab"].needs_key
    assert made["openai"] == replace(OPENAI, stall=9.0)
    assert endpoints_of({"lab": {**lab, "key": "LAB_AUTH"}})["lab"].key_variable == "LAB_AUTH"
    assert make_model("lab:qwen", endpoints=made).context == 9000  # type: ignore[attr-defined]
    own = prices_of({"qwen": {"input": 0.5, "output": 1}})
    assert price_of("qwen", own) == Price(0.5, 1, 0.5, 0.5)
    for table, words in [
        ({"lab": {}}, "endpoints.lab: base_url is missing"),
        ({"lab": {**lab, "contex": 1}}, "endpoints.lab: no key 'contex'; known are protocol"),
        ({"lab": {**lab, "context": "big"}}, "context is 'big'; it takes a int"),
        ({"lab": {**lab, "protocol": "soap"}}, "protocol is 'soap'; use openai"),
        ({"lab": {**lab, "price": {"input": 1}}}, "endpoints.lab.price: output is missing"),
        ({"lab": 3}, "endpoints.lab: must be a table"),
    ]:
        with pytest.raises(ModelError, match=words):
            endpoints_of(table)


def test_prices_match_dated_names_only() -> None:
    assert price_of("gpt-5-2025-08-07") == price_of("gpt-5") is not None
    assert price_of("claude-haiku-4-5-20251001") == price_of("claude-haiku-4-5") is not None
    assert price_of("gpt-5.99") is None
    assert price_of("gpt-5-pro") is None
    own = {"gpt-5": Price(1, 2, 3, 4), "qwen": Price(0, 0, 0, 0)}
    assert price_of("gpt-5", own) == own["gpt-5"]
    assert cost_of(Usage(1, 10, 100, 1000), own["gpt-5"]) == pytest.approx(2431 / 1e6)
    assert cost_of(Usage(1, 1), None) is None


def test_long_prompt_has_a_surcharge() -> None:
    price = price_of("gpt-6.1-sol")
    short, long = Usage(cache_read=272_000, output=1000), Usage(cache_read=272_001, output=1000)
    assert cost_of(short, price) == pytest.approx((272_000 * 0.1 + 1000 * 10) / 1e6)
    assert cost_of(long, price) == pytest.approx((272_001 * 0.2 + 1000 * 15) / 1e6)
    assert context_of("gpt-6.1-sol") == 272_000
    assert context_of("claude-sonnet-5-5") == 1_000_000
    assert context_of("llama") is None


def test_script_is_read_from_a_file_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "script.jsonl"
    file.write_text('{"text": "hi", "calls": [{"name": "bash", "arguments": "mal{"}]}\n\n')
    reply, pieces = ask(make_model(f"scripted:{file}"))
    assert reply.message.tool_calls == (ToolCall("call_1_1", "bash", "mal{"),)
    assert pieces == [("text", "hi")]
    file.write_text('{"calls": [{}]}\n')
    with pytest.raises(ModelError, match=r"script\.jsonl:1: not a reply"):
        make_model(f"scripted:{file}")


def test_sdks_are_imported_only_for_a_model() -> None:
    code = (
        "import sys, cuagent.models, cuagent.agent\n"
        "print([m for m in ('torch', 'openai', 'anthropic', 'git', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
