"""The expert as a model: it acts through tool calls alone and knows a run from its messages."""

from __future__ import annotations

import json

import pytest
from modules import Gated, task_text  # type: ignore[import-not-found]

from cuagent.message import Message
from cuagent.models.expert import ExpertModel
from cuagent.models.model import ToolSpec
from cuagent.task import load_task

TOOLS = [
    ToolSpec(name, "", {}) for name in ("bash", "write", "compile", "verify", "profile", "submit")
]


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "gated.py"
    path.write_text(task_text(Gated))
    return load_task(f"{path}:Gated", device="cpu")


def converse(task, answers, fresh=False, most=40):
    """Lets the expert act; `answers` maps a tool and how often it was called to a result's data."""
    model, messages, acts, counts = ExpertModel(task), [Message("user", "go")], [], {}
    while len(acts) < most:
        said: list[str] = []
        reply = model.query(messages, TOOLS, lambda text, kind, said=said: said.append(text))
        assert "".join(said) == reply.message.content
        messages.append(reply.message)
        for call in reply.message.tool_calls:
            counts[call.name] = counts.get(call.name, 0) + 1
            data = answers(call.name, counts[call.name])
            acts.append((call.name, json.loads(call.arguments)))
            messages.append(Message("tool", "", tool_call_id=call.id, data=data))
            if data.get("ended"):
                return acts
        if not reply.message.tool_calls:
            return acts
        if fresh:
            model = ExpertModel(task)
    raise AssertionError("the expert does not come to an end")


def accepted(number, ratio):
    ratios = {"eager": {"value": ratio}, "compile": {"value": ratio}}
    return {"accepted": True, "reason": "accepted", "attempt": number, "ratios": ratios}


def answers_with(verdicts):
    def answer(tool, count):
        match tool:
            case "compile":
                return {"ok": True}
            case "verify":
                return verdicts[min(count, len(verdicts)) - 1]
            case "submit":
                return {"ended": True}
        return {}

    return answer


def test_it_submits_the_fastest_accepted_attempt(task):
    acts = converse(task, answers_with([accepted(1, 1.3), accepted(2, 1.1), accepted(3, 1.0)]))
    name, arguments = acts[-1]
    assert (name, arguments["attempt"]) == ("submit", 1)
    assert "1.30x" in arguments["message"]
    assert [a for a, _ in acts[:2]] == ["profile", "write"]


def test_a_resumed_run_goes_on_as_the_same_run(task):
    verdicts = [accepted(1, 1.3), accepted(2, 1.6), accepted(3, 1.0)]
    straight = converse(task, answers_with(verdicts))
    assert converse(task, answers_with(verdicts), fresh=True) == straight


def test_no_gain_is_said(task):
    acts = converse(task, answers_with([accepted(n, 0.9) for n in range(1, 9)]))
    assert acts[-1][1]["message"].startswith("no gain")


def test_after_refusals_and_odd_results_it_ends(task):
    refused = {"accepted": False, "reason": "wrong values", "detail": "", "attempt": 1}
    acts = converse(task, answers_with([refused]))
    assert acts[-1] == ("submit", {"message": acts[-1][1]["message"]})
    assert converse(task, lambda tool, count: {})[-1][0] == "submit"


def test_a_kernel_that_does_not_compile_is_left_out_next(task):
    def answer(tool, count):
        if tool == "compile" and count == 1:
            return {"ok": False, "diagnostics": [{"file": "kernels/silu_mul_kernel.cpp"}]}
        return answers_with([accepted(1, 1.2)])(tool, count)

    acts = converse(task, answer)
    first_compile = [name for name, _ in acts].index("compile")
    assert any(name == "submit" for name, _ in acts[first_compile:])


def test_a_module_that_cannot_be_captured_ends_with_no_gain(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x * 2 if x.sum() > 0 else x\n"
        "def get_inputs(): return [torch.randn(4)]\ndef get_init_inputs(): return []\n"
    )
    acts = converse(load_task(str(path), device="cpu"), answers_with([]))
    assert acts[-1][0] == "submit"
    assert "cannot be captured" in acts[-1][1]["message"]
