"""The expert as a model: it acts through tool calls and reads the run from its messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from modules import Gated, Mlp, task_text  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target
from cuagent.expert.search.outcomes import Bounds, Outcome
from cuagent.expert.search.planner import propose
from cuagent.expert.search.progress import own_share
from cuagent.message import Message
from cuagent.models.expert import ExpertModel
from cuagent.models.model import ToolSpec
from cuagent.task import load_task
from cuagent.timing import Ratio

TOOLS = [
    ToolSpec(name, "", {})
    for name in ("bash", "read", "write", "compile", "verify", "profile", "submit")
]


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "gated.py"
    path.write_text(task_text(Gated))
    return load_task(f"{path}:Gated", device="cpu")


def converse(task, answers, fresh=False, most=40, ladder=None, **settings):
    """Run the expert and return its calls.

    `answers(tool, count)` returns the data of a tool's result, or a text for an error of the tool.
    `fresh` replaces the model after each step, as in a resumed run. `settings` are its attributes.
    """
    model, messages, acts, counts = ExpertModel(task), [Message("user", "go")], [], {}
    vars(model).update(settings)
    messages += [ladder] * (ladder is not None)
    while len(acts) < most:
        pieces: list[str] = []
        reply = model.query(messages, TOOLS, lambda text, kind, pieces=pieces: pieces.append(text))
        assert "".join(pieces) == reply.message.content
        messages.append(reply.message)
        for call in reply.message.tool_calls:
            counts[call.name] = counts.get(call.name, 0) + 1
            data = answers(call.name, counts[call.name])
            acts.append((call.name, json.loads(call.arguments)))
            text, data = (data, {}) if isinstance(data, str) else ("", data)
            messages.append(
                Message("tool", text, tool_call_id=call.id, data=data, is_error=bool(text))
            )
            if data.get("ended"):
                return acts
        if not reply.message.tool_calls:
            return acts
        if fresh:
            model = ExpertModel(task)
    raise AssertionError("the expert does not stop")


def accepted(number, eager, compiled=None, width=0.0):
    ratios = {
        name: {"value": ratio, "low": ratio - width, "high": ratio + width}
        for name, ratio in (("eager", eager), ("compile", compiled or eager))
    }
    return {"accepted": True, "reason": "accepted", "attempt": number, "ratios": ratios}


def names(acts):
    return [name for name, _ in acts]


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


def test_expert_submits_fastest_accepted_attempt(task):
    acts = converse(task, answers_with([accepted(1, 1.3), accepted(2, 1.1), accepted(3, 1.0)]))
    name, arguments = acts[-1]
    assert (name, arguments["attempt"]) == ("submit", 1)
    assert "1.30x" in arguments["message"]
    assert names(acts)[:2] == ["profile", "write"]


def test_without_explanations_only_a_profile_that_decides_is_made(task):
    """Schedules are tried only if the own kernels take a share of the time."""
    slow = answers_with([accepted(n, 0.9) for n in range(1, 9)])
    acts = converse(task, slow, explains=False)
    assert names(acts).count("profile") == 1
    assert names(acts)[0] == "write"
    assert acts[names(acts).index("profile")][1] == {"what": "candidate"}
    at_the_floor = Message("user", "ladder", data=bounds_at(1e-3))
    fast = answers_with([{**accepted(1, 3.0), "times": {"candidate": 1.01e-3}}])
    acts = converse(task, fast, explains=False, ladder=at_the_floor)
    assert "profile" not in names(acts), "the search ends in any case"


def bounds_at(floor):
    return {"bounds": {"rung": "eager", "rung_seconds": 3 * floor, "floor": floor}}


@pytest.mark.slow
def test_resumed_run_equals_uninterrupted_run(task):
    verdicts = [accepted(1, 1.3), accepted(2, 1.6), accepted(3, 1.0)]
    uninterrupted = converse(task, answers_with(verdicts))
    assert converse(task, answers_with(verdicts), fresh=True) == uninterrupted


def refusing(verdicts, refused):
    """Answer as `answers_with`, but refuse the first `refused` submitted attempts."""

    def answer(tool, count):
        if tool == "submit" and count <= refused:
            return {"ended": False, "reason": "wrong while timed"}
        return answers_with(verdicts)(tool, count)

    return answer


def test_next_best_is_submitted_after_a_refused_submission(task):
    acts = converse(task, refusing([accepted(1, 1.3), accepted(2, 1.2), accepted(3, 1.0)], 1))
    submitted = [arguments["attempt"] for name, arguments in acts if name == "submit"]
    assert submitted == [1, 2]


def test_refused_submission_is_repaired_if_no_other_attempt_was_accepted(tmp_path):
    path = tmp_path / "mlp.py"
    path.write_text(task_text(Mlp))
    task = load_task(f"{path}:Mlp", device="cpu")
    acts = converse(task, refusing([accepted(1, 3.0), accepted(2, 2.0)], 1))
    first = names(acts).index("submit")
    assert names(acts)[:first].count("verify") == 1
    assert "verify" in names(acts)[first:], "a repaired candidate follows"
    assert acts[-1][1].get("attempt") == 2


def test_submit_message_reports_no_gain(task):
    acts = converse(task, answers_with([accepted(n, 0.9) for n in range(1, 9)]))
    assert acts[-1][1]["message"].startswith("no gain")


def test_run_ends_after_rejections_and_empty_results(task):
    refused = {"accepted": False, "reason": "wrong values", "detail": "", "attempt": 1}
    acts = converse(task, answers_with([refused]))
    assert acts[-1] == ("submit", {"message": acts[-1][1]["message"]})
    assert converse(task, lambda tool, count: {})[-1][0] == "submit"


def test_run_continues_after_kernel_that_does_not_compile(task):
    def answer(tool, count):
        if tool == "compile" and count == 1:
            return {"ok": False, "diagnostics": [{"file": "kernels/silu_mul_kernel.cpp"}]}
        return answers_with([accepted(1, 1.2)])(tool, count)

    acts = converse(task, answer)
    first_compile = [name for name, _ in acts].index("compile")
    assert any(name == "submit" for name, _ in acts[first_compile:])


def test_uncapturable_module_ends_with_no_gain(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x * 2 if x.sum() > 0 else x\n"
        "def get_inputs(): return [torch.randn(4)]\ndef get_init_inputs(): return []\n"
    )
    acts = converse(load_task(str(path), device="cpu"), answers_with([]))
    assert acts[-1][0] == "submit"
    assert "cannot be captured" in acts[-1][1]["message"]


def test_expert_writes_only_changed_files_and_removes_only_stale_ones(task):
    acts = converse(task, answers_with([accepted(n, 0.9) for n in range(1, 9)]))
    folder: dict[str, str] = {}
    for name, arguments in acts:
        if name == "write":
            assert folder.get(arguments["path"]) != arguments["text"]
            folder[arguments["path"]] = arguments["text"]
        if name == "bash":
            for path in arguments["command"].removeprefix("rm ").split():
                del folder[path]
        if name == "compile" and any(path.endswith(".cpp") for path in folder):
            assert sorted(p for p in folder if p.endswith(".cpp")) == sorted(_loaded(folder))
    written = [a["path"] for name, a in acts if name == "write"]
    assert written.count("kernels/pointwise.h") == 1
    assert written.count("model_new.py") > 1


def _loaded(folder):
    return re.findall(r'load\("([^"]+)"\)', folder["model_new.py"])


def test_expert_reads_file_that_others_changed_before_writing_it(task):
    def answer(tool, count):
        if tool == "write" and count == 2:
            return "Error: model_new.py: it has changed since you read it; read it again"
        return answers_with([accepted(1, 1.3)])(tool, count)

    acts = converse(task, answer)
    reading = names(acts).index("read")
    path = acts[reading][1]["path"]
    assert acts[reading + 1][0] == "write"
    assert acts[reading + 1][1]["path"] == path
    assert "verify" not in names(acts)[:reading]


def test_failed_verify_call_is_repeated_once(task):
    def answer(tool, count):
        if tool == "verify" and count == 1:
            return "Error: verify failed inside (OSError: no space left)"
        return answers_with([accepted(1, 1.3)])(tool, count)

    acts = converse(task, answer)
    first = names(acts).index("verify")
    assert names(acts)[first : first + 2] == ["verify", "verify"]
    assert acts[-1][1]["attempt"] == 1


@pytest.mark.slow
def test_run_submits_best_attempt_after_two_failed_verify_calls(task):
    def answer(tool, count):
        if tool == "verify" and count > 1:
            return "Error: verify failed inside (OSError: no space left)"
        return answers_with([accepted(1, 1.3)])(tool, count)

    acts = converse(task, answer)
    assert names(acts).count("verify") == 3
    assert acts[-1][1]["attempt"] == 1
    acts = converse(task, lambda tool, n: "Error: full" if tool == "verify" else answer(tool, n))
    assert names(acts).count("verify") == 2
    assert "Error: full" in acts[-1][1]["message"]


def test_wide_interval_against_compile_does_not_end_run(task):
    acts = converse(task, answers_with([accepted(n, 3.0, 0.95, width=0.2) for n in range(1, 9)]))
    assert names(acts).count("verify") > 1
    assert acts[-1][0] == "submit"
    assert not acts[-1][1]["message"].startswith("no gain")


def test_expert_submits_attempt_with_best_lower_limit(task):
    verdicts = [accepted(1, 1.4, width=0.05), accepted(2, 1.5, width=0.4), accepted(3, 1.0)]
    assert converse(task, answers_with(verdicts))[-1][1]["attempt"] == 1


def test_submit_message_names_import_from_folder_of_reference(tmp_path):
    (tmp_path / "blocks.py").write_text("import torch\nclass Block(torch.nn.ReLU): pass\n")
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nfrom blocks import Block\n"
        "class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.block = Block()\n    def forward(self, x):\n"
        "        return self.block(x * 2) + 1\n"
        "def get_inputs(): return [torch.randn(4)]\ndef get_init_inputs(): return []\n"
    )
    acts = converse(load_task(str(path), device="cpu"), answers_with([]))
    assert acts[-1][0] == "submit"
    message = acts[-1][1]["message"]
    assert message.startswith("no gain")
    assert "task.py imports blocks" in message
    assert "\n" not in message


BOUNDS = {"rung": "compile", "rung_seconds": 1.0, "floor": 0.5}


def ladder(**bounds):
    return Message("user", "the ladder", data={"from": "ladder", "bounds": BOUNDS | bounds})


def timed(verdict, seconds):
    return verdict | {"times": {"candidate": seconds}}


def test_expert_writes_no_kernel_if_the_best_rung_is_at_the_floor(task):
    acts = converse(task, answers_with([accepted(1, 1.3)]), ladder=ladder(floor=0.97))
    assert names(acts) == ["submit"]
    assert "torch.compile runs at 97%" in acts[0][1]["message"]


def test_under_kernels_only_a_kernel_is_tried_although_the_best_rung_is_at_the_floor(task):
    at_floor = ladder(floor=0.97)
    acts = converse(task, answers_with([accepted(1, 1.3)]), ladder=at_floor, kernels_only=True)
    assert "verify" in names(acts)
    assert acts[-1][1]["attempt"] == 1


def test_search_ends_at_an_attempt_that_reaches_the_floor(task):
    verdicts = [timed(accepted(1, 1.9, 0.95), 0.52), accepted(2, 2.0)]
    acts = converse(task, answers_with(verdicts), ladder=ladder())
    assert names(acts).count("verify") == 1
    assert names(acts).count("profile") == 1  # of the reference: no choice depends on another one


@pytest.fixture
def on_cuda(tmp_path):
    """Return the subject of a task with a GPU as target, where a kernel has several schedules;
    nothing is compiled."""
    path = tmp_path / "mlp.py"
    path.write_text(task_text(Mlp))
    subject = ExpertModel(load_task(f"{path}:Mlp"))._open()
    return replace(subject, target=Target("cuda", (9, 0), 132))


def tries(subject, verdict, bounds, own_share=None):
    """Return the number of candidates that the expert tries if all have the same verdict."""
    return len(reasons(subject, verdict, bounds, own_share))


def reasons(subject, verdict, bounds, own_share=None):
    """Return the reasons of the candidates that the expert tries if all have the same verdict."""
    outcomes, found = [], []
    while (proposal := propose(subject, outcomes, bounds)) is not None:
        ratios = {name: Ratio(**r) for name, r in verdict["ratios"].items()}
        outcome = Outcome(proposal.candidate, True, "accepted", 1, ratios, own_share=own_share)
        outcomes.append(outcome)
        found.append(proposal.why)
    return found


def test_no_other_schedule_is_tried_far_from_the_best_rung(on_cuda):
    bounds = Bounds(**BOUNDS)
    near, far = (reasons(on_cuda, accepted(1, 3.0, over), bounds) for over in (0.8, 0.14))
    assert any("threads" in why for why in near)
    assert not any("threads" in why for why in far)


def test_no_other_schedule_is_tried_near_the_floor():
    bounds = Bounds(rung="compile", rung_seconds=3e-3, floor=1e-3)
    near, far = (Outcome(None, True, "accepted", 1, {}, seconds=s) for s in (1.1e-3, 1.3e-3))
    assert not bounds.schedules_may_win(near)
    assert bounds.schedules_may_win(far)
    assert Bounds(rung="compile").schedules_may_win(near), "the floor is not certain"


@pytest.mark.slow
def test_no_other_schedule_is_tried_if_the_time_is_in_libraries(on_cuda):
    verdict, bounds = accepted(1, 1.0), Bounds(**BOUNDS)
    little, most = (reasons(on_cuda, verdict, bounds, share) for share in (0.01, 0.9))
    assert any("threads" in why for why in most)
    assert not any("threads" in why for why in little)


def test_search_ends_after_attempts_without_sure_gain(on_cuda, task):
    assert tries(on_cuda, accepted(1, 1.2), Bounds()) == 3
    noisy = accepted(1, 1.2, width=0.3)
    assert tries(on_cuda, noisy, Bounds()) == 3, "noise is no gain"
    assert tries(ExpertModel(task)._open(), accepted(1, 1.0), Bounds()) == 2


@pytest.mark.parametrize("rung", ["compile", "reduce-overhead"])
def test_attempt_behind_a_compiled_rung_leaves_the_rest_to_torch_compile(task, rung):
    subject = ExpertModel(task)._open()
    first = propose(subject, [])
    ratios = {"eager": Ratio(2.0, 1.9, 2.1), "compile": Ratio(0.8, 0.75, 0.85)}
    outcome = Outcome(first.candidate, True, "accepted", 1, ratios)
    second = propose(subject, [outcome], Bounds(rung=rung))
    assert second.candidate.options.compile == "default"
    by_kernels = propose(subject, [outcome], Bounds(rung=rung, kernels_only=True))
    assert by_kernels is None or not by_kernels.candidate.options.compile
    assert second.candidate.options.graph is (rung == "reduce-overhead")
    assert second.candidate.kernels == first.candidate.kernels


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_results_of_torchs_own_graphs_are_copied(task, mode):
    candidate = make_candidate(ExpertModel(task)._open(), Options(compile=mode))
    copies = ".clone()" in candidate.files["model_new.py"]
    assert copies is (mode == "reduce-overhead"), "graphs return the same memory at each call"


def test_attempt_clearly_ahead_of_torch_compile_stays_eager(task):
    subject = ExpertModel(task)._open()
    first = propose(subject, [])
    ratios = {"eager": Ratio(2.0, 1.9, 2.1), "compile": Ratio(1.4, 1.3, 1.5)}
    outcome = Outcome(first.candidate, True, "accepted", 1, ratios)
    second = propose(subject, [outcome], Bounds(rung="compile"))
    assert second is None or not second.candidate.options.compile


def test_profile_shows_the_share_of_the_own_kernels():
    costs = [{"name": "silu_mul_kernel_device(float*)", "seconds": 1.0}]
    costs.append({"name": "sm90_xmma_gemm", "seconds": 3.0})
    assert own_share({"kernels": costs, "operators": []}, ["silu_mul_kernel"]) == 0.25
    costs = [{"name": "own kernel: f", "seconds": 1.0}, {"name": "aten::mm", "seconds": 1.0}]
    assert own_share({"kernels": [], "operators": costs}, []) == 0.5
    assert own_share({}, []) is None


def test_loss_against_the_best_rung_is_no_gain(task):
    acts = converse(
        task, answers_with([accepted(n, 3.0, 0.3) for n in range(1, 9)]), ladder=ladder()
    )
    assert acts[-1][1]["message"].startswith("no gain")


def test_expert_takes_over_files_that_another_model_wrote(task):
    """A refused write of each file, and failed calls of that model, do not end the run."""
    refused = set()

    def answer(tool, count):
        if tool == "write" and count not in refused and len(refused) < 2:
            refused.add(count)
            return "Error: read it before you change it"
        return answers_with([accepted(1, 1.3)])(tool, count)

    acts = converse(task, answer)
    assert len(refused) == 2
    assert "verify" in names(acts)


def test_float64_is_named_as_the_reason_why_no_kernel_is_written(tmp_path):
    path = tmp_path / "wide.py"
    path.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.tanh(x) * torch.sigmoid(x)\n"
        "def get_inputs():\n"
        "    return [torch.randn(4, 8, dtype=torch.float64)]\n"
    )
    acts = converse(load_task(path, device="cpu"), lambda *_: {})
    assert "float64" in json.dumps(acts[-1])


def test_prepared_model_has_planned_its_first_candidate(task, monkeypatch):
    model = ExpertModel(task)
    model.prepare()
    planned = []
    monkeypatch.setattr("cuagent.expert.candidate.plan_method", lambda *_: planned.append(1))
    found = model._proposal([], Bounds())
    assert found is not None
    assert not planned


PRELOAD = """
import sys
from cuagent.models.expert import ExpertModel
from cuagent.task import load_task
model = ExpertModel(load_task(sys.argv[1], device="cpu"))
model.preload()
before = set(sys.modules)
model.prepare()
print(len(set(sys.modules) - before))
"""


def test_preloading_imports_what_the_first_candidate_needs(task):
    """The imports take three seconds, in which the processes of a run open."""
    command = [sys.executable, "-c", PRELOAD, f"{task.path}:{task.entry}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50, "torch.export alone imports several hundred modules"


def test_candidate_that_is_a_clear_gain_is_not_profiled_for_the_user_alone(task):
    def answers(tool, count, speedup):
        ratio = {"value": speedup, "low": speedup - 0.01, "high": speedup + 0.01}
        data = {"accepted": True, "attempt": count, "ratios": {"eager": ratio}}
        return {"compile": {"ok": True}, "verify": data, "submit": {"ended": True}}.get(tool, {})

    for speedup, profiles in ((1.0, 2), (3.0, 1)):
        acts = converse(task, lambda tool, n, s=speedup: answers(tool, n, s))
        assert names(acts).count("profile") == profiles, speedup
