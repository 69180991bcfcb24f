"""Tests of verdicts: honest candidates are accepted; each fault and cheat has its own reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bodies import CANDIDATE, candidate
from shares import slow_after

from cuagent.attempt import Attempt, freeze
from cuagent.build import build
from cuagent.sandbox import Tier
from cuagent.task import Precision, Task
from cuagent.verify import Reason, Referee, Verdict
from cuagent.verify import referee as referee_module

Judged = Callable[[str], Verdict]


def test_honest_candidate_is_accepted_by_both_rules(judged: Judged) -> None:
    verdict = judged("return self.honest(x)")
    assert verdict.reason is Reason.ACCEPTED, verdict
    assert verdict.lax is not None
    assert verdict.lax.passed
    assert verdict.strict is not None
    assert verdict.strict.worst < 0.5
    assert verdict.precision is Precision.MATCH
    assert len(verdict.draws) >= 10
    # the reference is perturbed only if the verdict depends on it
    assert sum(count > 0 for count in verdict.perturbations) <= len(verdict.draws) / 3
    # On a CPU the kernel limits memory; only GPU memory is watched.
    assert verdict.tier == "UNISOLATED" or "memory by rlimit" in verdict.tier


def test_candidate_can_use_the_functions_that_generated_modules_import(judged: Judged) -> None:
    # A candidate in the sandbox cannot read cuagent's files, so all of this is imported before.
    verdict = judged("""
    from cuagent.kernels import compile_together, replay, unchanged, watch
    compile_together(lambda: None)
    return replay(self, type(self).honest, (x,))
    """)
    assert verdict.reason is Reason.ACCEPTED, verdict


def test_later_verdicts_take_less_than_four_seconds(judged: Judged) -> None:
    # The best of some, because others may use the machine meanwhile.
    verdicts = (judged("return self.honest(x)") for _ in range(20))
    assert any(verdict.seconds["total"] < 4 for verdict in verdicts)


def test_seeds_are_not_reused(judged: Judged) -> None:
    first, second = judged("return self.honest(x)"), judged("return self.honest(x)")
    seeds = [draw.seed for verdict in (first, second) for draw in verdict.draws]
    assert len(set(seeds)) == len(seeds)


def test_change_of_its_own_weights_is_rejected_even_if_outputs_are_right(judged: Judged) -> None:
    in_place = """
    y = self.honest(x)
    self.linear.weight.data[0, 0].add_(1.0)
    return y
    """
    verdict = judged(in_place)
    assert verdict.reason is Reason.CHANGED_INPUT, verdict
    assert "of its state dict" in verdict.detail


WRONG = {
    "a factor": ("return self.honest(x) * 1.1", Reason.WRONG_VALUES),
    "zeros": ("return torch.zeros(64, 96)", Reason.WRONG_VALUES),
    "one element": ("y = self.honest(x).clone(); y[5, 7] += 0.01; return y", Reason.WRONG_VALUES),
    "NaN": ("y = self.honest(x).clone(); y[0, 0] = float('nan'); return y", Reason.WRONG_VALUES),
    "weights ignored": (
        "return torch.relu(self.linear(x * torch.rsqrt(x.square().mean(-1, keepdim=True))))",
        Reason.WRONG_VALUES,
    ),
    "bf16 products": (
        """
        weight = self.linear.weight
        coarse = torch.nn.Parameter(weight.bfloat16().float())
        self.linear.weight = coarse
        y = self.honest(x.bfloat16().float())
        self.linear.weight = weight
        return y
        """,
        Reason.LESS_PRECISE,
    ),
    "unwritten row": (
        "y = torch.empty(64, 96); y[1:] = self.honest(x)[1:]; return y",
        Reason.NOT_WRITTEN,
    ),
    "first answer again": (
        "self.kept = getattr(self, 'kept', None); "
        "self.kept = self.honest(x) if self.kept is None else self.kept; return self.kept",
        Reason.WRONG_VALUES,
    ),
    "answer keyed on the pointer": (
        """
        global kept
        kept = globals().get("kept", {})
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = self.honest(x)
        return kept[x.data_ptr()]
        """,
        Reason.WRONG_VALUES,
    ),
    "every other call": (
        """
        self.calls = getattr(self, "calls", 0) + 1
        return self.honest(x) * (1 + self.calls % 2)
        """,
        Reason.NOT_DETERMINISTIC,
    ),
    "state kept between calls": (
        "self.calls = getattr(self, 'calls', 0) + 1; return self.honest(x) * (self.calls < 13)",
        Reason.NOT_DETERMINISTIC,
    ),
    "old weights": (
        """
        self.kept = self.linear.weight.t().clone() if not hasattr(self, "kept") else self.kept
        x = x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-6) * self.scale
        return (x @ self.kept + self.linear.bias).clamp(min=0)
        """,
        Reason.WRONG_VALUES,
    ),
    "shape": ("return self.honest(x)[:1]", Reason.WRONG_FORM),
    "dtype": ("return self.honest(x).double()", Reason.WRONG_FORM),
    "nesting": ("return (self.honest(x),)", Reason.WRONG_FORM),
    "no tensor": ("return 3", Reason.WRONG_FORM),
    "input changed": ("y = self.honest(x); x.add_(1e-3); return y", Reason.CHANGED_INPUT),
    "past an input": (
        """
        import ctypes
        ctypes.memset(x.data_ptr() + x.nbytes, 0, 4)
        return self.honest(x)
        """,
        Reason.WROTE_OUTSIDE,
    ),
    "past what it allocated": (
        """
        import ctypes
        y = torch.empty_like(x)
        ctypes.memset(y.data_ptr() + y.nbytes, 0, 4)
        return self.honest(x)
        """,
        Reason.WROTE_OUTSIDE,
    ),
    "exception": ("raise ValueError('no such tile')", Reason.RAISED),
    "sys.exit": ("import sys; sys.exit(0)", Reason.RAISED),
    "segfault": ("import ctypes; ctypes.string_at(0)", Reason.CRASHED),
    "os._exit": ("import os; os._exit(0)", Reason.CRASHED),
    "garbage on the channel": (
        "import os; os.write(3, b'accepted' * 40); return x[:1]",
        Reason.CRASHED,
    ),
    "a forged record": (
        "import os, struct; os.write(3, struct.pack('<QIBxxxQ', 0, 0, 0, 1)); return x[:1]",
        Reason.CRASHED,
    ),
    "late thread": (
        """
        import threading, time
        y = torch.zeros(64, 96)
        def later(x=x.clone()):
            time.sleep(0.2)
            y.copy_(self.honest(x))
        threading.Thread(target=later, daemon=True).start()
        return y
        """,
        Reason.WRONG_VALUES,
    ),
    "lazy subclass": (
        """
        class Lazy(torch.Tensor):
            pass
        return torch.zeros(64, 96).as_subclass(Lazy)
        """,
        Reason.WRONG_VALUES,
    ),
    "patched comparison": (
        """
        torch.allclose = torch.equal = lambda *a, **k: True
        torch.Tensor.__eq__ = lambda *a: torch.ones(64, 96, dtype=torch.bool)
        return torch.zeros(64, 96)
        """,
        Reason.WRONG_VALUES,
    ),
}


ALSO_IN_OTHERS = (
    *("os._exit", "segfault", "garbage on the channel", "a forged record"),  # test_faults.py
    *("late thread", "lazy subclass", "patched comparison", "answer keyed on the pointer"),
    *("zeros", "NaN", "state kept between calls", "no tensor", "sys.exit"),
)
"""Cases of the slow suite: an exploit of the corpus or another case here covers nearly the same."""


@pytest.mark.parametrize(
    "name",
    [n if n not in ALSO_IN_OTHERS else pytest.param(n, marks=pytest.mark.slow) for n in WRONG],
)
def test_wrong_candidate_is_rejected_with_the_right_reason(judged: Judged, name: str) -> None:
    body, reason = WRONG[name]
    verdict = judged(body)
    assert verdict.reason is reason, (verdict.detail, verdict.output)
    assert not verdict.accepted


def test_exception_is_reported_with_its_line(judged: Judged) -> None:
    verdict = judged("raise ValueError('no such tile')")
    line = next(n for n, text in enumerate(CANDIDATE.splitlines(), 1) if text == "{body}")
    assert verdict.detail == f"model_new.py:{line}: ValueError: no such tile"
    assert "model_new.py" in verdict.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\nclass ModelNew(:\n", ":2: SyntaxError: invalid syntax"),
        ("import torch\n\nimport not_there_at_all\n", ":3: ModuleNotFoundError: No module"),
        ("class Mine: pass\n", " has no class ModelNew"),
    ],
)
def test_import_error_names_the_users_file(
    task: Task, referee: Referee, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "my_kernel.py"
    file.write_text(text)
    attempt = freeze(file)
    verdict = referee.verify(attempt, build(attempt, task.device))
    assert verdict.reason is Reason.IMPORT_FAILED
    assert f"{file}{said}" in verdict.detail
    assert "model_new.py" not in verdict.detail + verdict.output


FORM = """
import torch
class {name}(torch.nn.Module):
    def __init__(self{construct}):
        super().__init__()
    def forward(self{forward}):
        return x
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FORM.format(name="Mine", construct=", n", forward=", x"), "ModelNew; it has Mine: rename"),
        ("class ModelNew: pass", "ModelNew is not a torch.nn.Module"),
        (
            FORM.format(name="ModelNew", construct="", forward=", x"),
            "constructed as the reference is, with (512): too many positional arguments",
        ),
        (
            FORM.format(name="ModelNew", construct=", n", forward=", x, y"),
            "forward is called as the reference's is, with (tensor): missing a required argument",
        ),
        (
            FORM.format(name="ModelNew", construct=", n", forward=", x"),
            "ModelNew lacks linear.bias, linear.weight, scale",
        ),
    ],
    ids=["name", "no module", "constructor", "forward", "weights"],
)
def test_class_of_wrong_form_is_reported_with_the_expected_form(
    task: Task, referee: Referee, text: str, said: str
) -> None:
    attempt = Attempt((("model_new.py", text),))
    verdict = referee.verify(attempt, build(attempt, task.device))
    assert said in verdict.detail


def test_output_of_wrong_nesting_is_reported_with_the_expected_nesting(judged: Judged) -> None:
    assert judged("pass").detail == "forward returns None; the reference returns a tensor"
    assert judged("return {'y': (x,)}").detail.startswith("forward returns {'y': (a tensor,)};")


KEPT = """
if not hasattr(self, "kept"):
    self.kept = [torch.empty(64, 96) for _ in range({count})]
    self.turn = 0
self.turn = (self.turn + 1) % {count}
return self.kept[self.turn].copy_(self.honest(x))
"""


def test_memory_that_calls_share_is_named(judged: Judged) -> None:
    verdict = judged(KEPT.format(count=1))
    assert verdict.reason is Reason.WRONG_VALUES
    assert "a later call changed an earlier output" in verdict.detail


def test_two_outputs_in_turn_are_refused(judged: Judged) -> None:
    assert judged(KEPT.format(count=2)).reason is Reason.WRONG_VALUES


def test_crash_names_its_signal(judged: Judged) -> None:
    assert judged("import ctypes; ctypes.string_at(0)").detail == "killed by SIGSEGV"


def test_endless_loop_times_out(task: Task, referee: Referee, judged: Judged) -> None:
    referee.call_s, before = 0.5, referee.call_s
    try:
        begun = time.perf_counter()
        verdict = judged("while True: pass")
        assert verdict.reason is Reason.TIMED_OUT
        assert "look for a hang, compile before the first call" in verdict.detail
        assert time.perf_counter() - begun < 60  # usually below 2 s
    finally:
        referee.call_s = before


def test_verdict_times_out_if_all_calls_are_slow(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(referee_module, "VERDICT_S", 1.0)
    monkeypatch.setattr(referee_module, "SLOWER", 0.0)  # else the limit is long on a busy machine
    verdict = judged("import time; time.sleep(0.4); return self.honest(x)")
    assert verdict.reason is Reason.TIMED_OUT
    assert len(verdict.draws) <= 3


def test_candidate_cannot_change_its_processors(referee: Referee, judged: Judged) -> None:
    if referee.tier is Tier.NONE:
        pytest.skip("no sandbox here")
    verdict = judged("import os; os.sched_setaffinity(0, {0}); return self.honest(x)")
    assert "PermissionError" in verdict.detail


@pytest.mark.parametrize("how", slow_after(1, ["mmap.mmap(-1, 1 << 27)", "torch.ones(1 << 25)"]))
def test_unbounded_memory_use_is_the_candidates_fault(
    referee: Referee, judged: Judged, how: str
) -> None:
    before = referee.processes.memory_bytes, referee.call_s
    referee.processes.memory_bytes, referee.call_s = 1 << 30, 60.0
    body = f"""
        import mmap
        kept = []
        while True:
            kept.append({how})
            if hasattr(kept[-1], "write"):
                kept[-1].write(bytes(1 << 27))
    """
    try:
        verdict = judged(body)
        assert verdict.reason in (Reason.RAISED, Reason.CRASHED)
        if verdict.reason is Reason.CRASHED:
            assert "keep fewer or smaller temporary tensors" in verdict.detail
    finally:
        referee.processes.memory_bytes, referee.call_s = before


def test_printed_output_is_capped(judged: Judged) -> None:
    verdict = judged("print('x' * (4 << 20)); return self.honest(x)")
    assert verdict.accepted, verdict
    assert len(verdict.output) < 100 << 10


def test_import_construction_and_loading_errors_have_their_own_reasons(
    task: Task, referee: Referee
) -> None:
    def reason(text: str) -> Reason:
        attempt = Attempt((("model_new.py", text),))
        return referee.verify(attempt, build(attempt, task.device)).reason

    module = "import torch\nclass ModelNew(torch.nn.Module):\n    def __init__(self, width):\n"
    assert reason("import no_such_module") is Reason.IMPORT_FAILED
    assert reason("class Other: pass") is Reason.IMPORT_FAILED
    assert reason(module + "        raise ValueError") is Reason.CONSTRUCT_FAILED
    assert reason(module + "        super().__init__()") is Reason.STATE_MISMATCH


def test_processes_of_a_candidate_end_with_its_verdict(judged: Judged, tmp_path: Path) -> None:
    verdict = judged(
        """
        import os, time
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                print(f"pid {os.getpid()} left", flush=True)
                os.write(write, b".")
                time.sleep(600)
            os._exit(0)
        os.wait()
        os.read(read, 1)
        return x[:1]
        """
    )
    pids = [line.split()[1] for line in verdict.output.splitlines() if line.endswith("left")]
    assert pids, verdict
    for pid in pids:
        status = Path(f"/proc/{pid}/stat")
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_verdicts_leave_no_descriptors_or_folders(referee: Referee, judged: Judged) -> None:
    def left() -> tuple[int, set[Path]]:
        sessions = set(referee.folder.iterdir())
        return len(list(Path("/proc/self/fd").iterdir())), sessions

    before = left()
    for body in ("return self.honest(x)", "raise ValueError", "import os; os._exit(1)"):
        judged(body)
    assert left() == before


def test_candidate_process_holds_no_task_or_oracle(judged: Judged) -> None:
    verdict = judged(
        """
        import gc, os, sys
        names = [name for name in sys.modules if "verify" in name or "cuagent_task" in name]
        print("modules", names)
        print("open", sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:8])
        print("secrets", [k for k in os.environ if "KEY" in k or "TOKEN" in k])
        return self.honest(x)
        """
    )
    assert "modules []" in verdict.output, verdict.output
    assert "secrets []" in verdict.output


def test_stale_weights_and_wrong_inputs_have_different_details(
    judged: Judged,
) -> None:
    stale = judged(
        """
        self.kept = getattr(self, "kept", None) or self.scale.tolist()
        return self.honest(x) * (torch.tensor(self.kept) == self.scale).all()
        """
    )
    assert "wrong after load_state_dict into the model in use" in stale.detail
    inputs = judged("return self.honest(x) + (x == x.round()).all()")
    assert inputs.reason is Reason.WRONG_VALUES
    assert inputs.detail.startswith("on "), inputs.detail


def test_candidate_that_compiles_may_take_longer_for_a_call(referee: Referee) -> None:
    plain, compiled = candidate("return self.honest(x)"), candidate("return torch.compile(f)(x)")
    assert referee.call_limit_s(plain) == max(
        referee.call_s, referee_module.SLOWER * referee.facts.call_s
    )
    assert referee.call_limit_s(compiled) >= referee_module.VERDICT_S > referee.call_s
    referee.processes.compiled.keep(compiled, None, 100.0)
    assert referee.call_limit_s(compiled) > 100.0, "it may have to compile again"
