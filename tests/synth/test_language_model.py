"""Test composition by a language model, which a local HTTP server plays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from synth_tasks import task

from cuagent.models.endpoint import OPENAI
from cuagent.models.openai import OpenAIModel
from cuagent.synth.compose import Grammar
from cuagent.synth.language_model import ModelComposer, parsed_reply

sys.path.append(str(Path(__file__).parents[1] / "models"))
from provider import Provider, serve

SOFTMAX = task("return torch.softmax(torch.exp(x), dim=1)")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")


def model(provider: Provider) -> OpenAIModel:
    from dataclasses import replace

    return OpenAIModel("m", replace(OPENAI, base_url=provider.url, protocol="openai"))


def test_reply_becomes_a_candidate_and_is_asked_for_once(tmp_path: Path) -> None:
    with serve({"text": f"Here it is.\n```python\n{SOFTMAX}```\n"}) as provider:
        first = ModelComposer(model(provider), 0, Grammar(), tmp_path)(0)
        again = ModelComposer(model(provider), 0, Grammar(), tmp_path)(0)
        assert len(provider.requests) == 1
        asked = str(provider.requests[0]["messages"][-1]["content"])
    assert first is not None
    assert first == again
    assert first.code == SOFTMAX
    assert first.ops == ("torch.exp", "torch.softmax")
    assert asked.startswith("Combine these operators")


def test_recipe_follows_the_seed_and_the_grammar(tmp_path: Path) -> None:
    with serve({"text": ""}) as provider:
        grammar = Grammar(counts={4: 1.0}, families={"scans": 1.0})
        composer = ModelComposer(model(provider), 0, grammar, tmp_path)
        families, operators, _ = composer.recipe(3)
        assert families == ("scans",) * 4
        assert composer.recipe(3)[1] == operators
        assert any(composer.recipe(n)[1] != operators for n in range(4, 9))


@pytest.mark.parametrize("reply", ["I cannot.", "```python\nx = (\n```", "```python\nx = 1\n```"])
def test_reply_without_a_task_is_no_candidate(reply: str) -> None:
    assert parsed_reply(reply, 0, (), "float32") is None
