"""Tests of the compute-sanitizer gate: reading its reports and running it in the sandbox.

Its real findings need a device (test_gpu.py). Here a program stands in for it that takes the same
steps, in the same order, as the tool before it starts its target.
"""

from __future__ import annotations

import functools
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bodies import candidate

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.device_lock import DeviceLock
from cuagent.sandbox import Tier, probe
from cuagent.task import Device
from cuagent.verify import Referee, race_limit, sanitize, tool_runs
from cuagent.verify.compute_sanitizer import (
    FOUND,
    Outcome,
    Report,
    name_filter,
    read,
    run,
    sandboxed,
)
from cuagent.verify.oracle.client import Oracle
from cuagent.verify.own_kernels import allocates, kernels_with_barriers, own_kernels
from cuagent.verify.race_limit import CLEAN_LATE_S, why_hopeless
from cuagent.verify.sanitize import SHARED, TOOLS, Check, check, write_debug_folder

pytestmark = pytest.mark.slow

STAND_IN = """#!/bin/sh
test "$1" = --help && echo "  --kernel-name arg" && exit
echo "$@" > "$TMPDIR/arguments"
while [ "$1" != /usr/bin/env ]; do shift; done
test -x "$1" || exit 13  # as access() sees it
mkdir "$TMPDIR/NVIDIA-treetracker" && mkfifo "$TMPDIR/NVIDIA-treetracker/pipe" || exit 14
"$@" && echo "========= ERROR SUMMARY: 0 errors"
"""
OWN = frozenset({"relu_kernel"})
REPORT = """========= COMPUTE-SANITIZER
========= {what}
=========     at {kernel}(float *, long)+0xd0
=========     by thread (31,0,0) in block (2,0,0)
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("tool", "what", "kernel", "outcome"),
    [
        ("memcheck", "Invalid __global__ read of size 4 bytes", "relu_kernel", Outcome.FAULTY),
        ("memcheck", "Invalid __global__ read of size 4 bytes", "cublas_gemm", Outcome.FAULTY),
        ("initcheck", "Uninitialized __global__ memory read", "relu_kernel", Outcome.FAULTY),
        ("initcheck", "Uninitialized __global__ memory read", "cutlass_gemm", Outcome.ELSEWHERE),
        ("racecheck", "Error: Race reported between Write", "relu_kernel_of_torch",
         Outcome.ELSEWHERE),
    ],
)  # fmt: skip
def test_finding_counts_only_if_the_attempt_is_at_fault(
    tool: str, what: str, kernel: str, outcome: Outcome
) -> None:
    report = read(tool, FOUND, REPORT.format(what=what, kernel=kernel), OWN)
    assert report.outcome is outcome
    assert report.text.startswith(what)


@pytest.mark.parametrize(
    ("status", "text", "outcome"),
    [
        (0, "========= ERROR SUMMARY: 0 errors\n", Outcome.CLEAN),
        (0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors)\n", Outcome.CLEAN),
        (0, "========= Error: Target application terminated before first call\n", Outcome.UNKNOWN),
        (0, "", Outcome.UNKNOWN),
        (13, "========= Error launching target app.\n", Outcome.UNKNOWN),
        (None, "", Outcome.UNKNOWN),
    ],
)
def test_tool_that_did_not_run_is_unknown(status: int | None, text: str, outcome: Outcome) -> None:
    report = read("memcheck", status, text, OWN)
    assert report.outcome is outcome
    assert bool(report.text) is (outcome is not Outcome.CLEAN)


def test_own_kernels_are_found_by_name() -> None:
    files = (
        ("kernels/a.cu", "__global__ void __launch_bounds__(256, 2) first(float* x) {}"),
        ("kernels/b.cu", "template <int N>\n__global__ __launch_bounds__(N)\nvoid second(int n);"),
        ("model_new.py", "S = '''__global__ void third(int n) {}'''\n@triton.jit\ndef fourth(x):"),
    )
    assert own_kernels(Attempt(files)) == {"first", "second", "third", "fourth"}


def test_candidate_runs_under_a_tool_in_the_sandbox(referee: Referee, tmp_path: Path) -> None:
    """The tool must be able to start the interpreter at any path, and to write files."""
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(STAND_IN)
    tool.chmod(0o755)
    attempt = candidate("return self.honest(x)")
    built = build(attempt, referee.task.device)
    tier = Tier.NONE if probe() is Tier.NONE else Tier.LANDLOCK
    folder = referee.folder / "tool"
    folder.mkdir(mode=0o755)
    write_debug_folder(referee, attempt, folder)
    folder /= SHARED
    status, text = run(sandboxed(tool, "memcheck", folder, built, tier), folder, 60.0)
    assert read("memcheck", status, text, OWN).outcome is Outcome.CLEAN, (tier, status, text)


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "compute-sanitizer"
    path.parent.mkdir()
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return path


def checked(tool: Path, referee: Referee, body: str, budget_s: float = 600.0) -> Check:
    attempt = candidate(body)
    built = build(attempt, referee.task.device)
    return check(tool, {"relu_kernel"}, referee, attempt, built, TOOLS, budget_s)


def gets_the_device(lock: DeviceLock, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Return True if another judge can time although this thread has not returned yet.

    `meanwhile` is called while the other one waits.
    """
    granted = threading.Event()

    def time_elsewhere() -> None:
        with DeviceLock(lock.lock).exclusive():
            granted.set()

    other = threading.Thread(target=time_elsewhere, daemon=True)
    other.start()
    while not (granted.is_set() or lock.is_awaited):
        time.sleep(0.01)
    meanwhile()
    return granted.wait(60)


def test_timing_elsewhere_does_not_wait_for_inputs_and_files_of_the_tools(
    tool: Path, referee: Referee, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer is computed either: in fp64 it takes seconds for a large convolution."""
    lock, seen = DeviceLock(tmp_path / "gpu-0"), dict[str, bool]()
    draw_inputs, save = sanitize._inputs, torch.save

    def drawn(of: Referee) -> Any:
        seen["drawn"] = gets_the_device(lock, lambda: draw_inputs(of))
        return draw_inputs(of)

    def saved(*arguments: Any) -> None:
        seen["written"] = gets_the_device(lock)
        save(*arguments)

    monkeypatch.setattr(sanitize, "_inputs", drawn)
    monkeypatch.setattr(torch, "save", saved)
    monkeypatch.delattr(Oracle, "answer")
    attempt = candidate("return self.honest(x)")
    built = build(attempt, referee.task.device)
    with Referee(referee.task, fork_server=referee.fork_server, lock=lock.lock) as judge:
        found = check(tool, {"relu_kernel"}, judge, attempt, built, ("memcheck",), 120.0, lock)
    assert [report.outcome for report in found.reports] == [Outcome.CLEAN]
    assert seen == {"drawn": True, "written": True}


def test_tools_instrument_only_the_own_kernels(tool: Path, tmp_path: Path) -> None:
    attempt = candidate("return self.honest(x)")
    built = build(attempt, Device.CPU)
    command = sandboxed(tool, "racecheck", tmp_path, built, Tier.NONE, {"b", "a"})
    assert "--kernel-name kns=a --kernel-name kns=b --launch-count 64" in " ".join(command)
    tool.write_text("#!/bin/sh\necho '  --kernel-regex arg'\n")
    name_filter.cache_clear()
    command = sandboxed(tool, "racecheck", tmp_path, built, Tier.NONE, {"a"})
    assert "--kernel-regex kns=a" in " ".join(command)
    name_filter.cache_clear()


def test_check_runs_all_tools_and_states_what_it_covered(tool: Path, referee: Referee) -> None:
    found = checked(tool, referee, "return self.honest(x)")
    assert [(r.tool, r.outcome) for r in found.reports] == [(t, Outcome.CLEAN) for t in TOOLS]
    assert "covered relu_kernel (at most 64 launches on the task's own inputs" in found.coverage
    assert list(referee.folder.glob("sanitize-*")) == []


ONLY_OWN_WRITES = """case "$*" in *initcheck*kns=*)
echo "========= Uninitialized __global__ memory read of size 4 bytes"
echo "=========     at relu_kernel(float *, long)+0xd0"; exit 99;; esac
"""
"""Report on a kernel that reads a library's result, if only own kernels are instrumented."""


def test_read_of_a_librarys_result_does_not_reject(tool: Path, referee: Referee) -> None:
    tool.write_text(STAND_IN.replace("while ", f"{ONLY_OWN_WRITES}while ", 1))
    found = checked(tool, referee, "return self.honest(x)")
    assert [r.outcome for r in found.reports] == [Outcome.CLEAN] * len(TOOLS)


def test_unwritten_memory_rejects_if_all_kernels_are_instrumented(
    tool: Path, referee: Referee
) -> None:
    always = ONLY_OWN_WRITES.replace("kns=*", "")
    tool.write_text(STAND_IN.replace("while ", f"{always}while ", 1))
    found = checked(tool, referee, "return self.honest(x)")
    assert [r.outcome for r in found.reports][-1] is Outcome.FAULTY


def test_unwritten_memory_without_confirmation_is_a_note(tool: Path, referee: Referee) -> None:
    late = 'case "$*" in *initcheck*) sleep 60;; esac\n'
    tool.write_text(STAND_IN.replace("while ", f"{ONLY_OWN_WRITES}{late}while ", 1))
    last = checked(tool, referee, "return self.honest(x)", budget_s=20.0).reports[-1]
    assert last.outcome is Outcome.UNKNOWN
    assert "exceeded its time limit" in last.text


def test_check_ends_with_its_budget(tool: Path, referee: Referee) -> None:
    found = checked(tool, referee, "import time; time.sleep(600)", budget_s=0.5)
    assert {r.outcome for r in found.reports} == {Outcome.UNKNOWN}
    assert found.seconds < 200  # usually below 5 s


def test_large_inputs_are_cut_if_the_own_kernels_still_run(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = referee.facts
    rows = facts.layouts.inputs.leaves[0].shape[0]
    size = sum(leaf.nbytes for leaf in facts.layouts.inputs.leaves)
    monkeypatch.setattr(sanitize, "LARGE_BYTES", size - 1)
    monkeypatch.setattr(sanitize, "TAIL", 1)
    body = "return self.honest(x)"
    found = checked(tool, referee, body)
    assert found.rows == (int(rows * (size - 1) / size / 4), rows)
    assert f"the first {found.rows[0]} of {rows} rows" in found.coverage
    found = checked(tool, referee, f"assert len(x) == {rows}; {body}")
    assert found.rows is None, "a call that fails on fewer rows is repeated on all"
    assert {r.outcome for r in found.reports} == {Outcome.CLEAN}


def test_attempt_without_own_kernels_is_not_covered() -> None:
    assert "defines no kernel" in Check(()).coverage


@pytest.mark.parametrize(
    ("text", "own_memory"),
    [
        ("float* p; cudaMalloc(&p, n);", True),
        ("cudaMallocAsync((void**)&p, n, stream);", True),
        ("cuMemAlloc_v2(&p, n);", True),
        ("cp.cuda.runtime.malloc(n)", True),
        ("torch.cuda.caching_allocator_alloc(n)", True),
        ("out = torch.empty(8)", False),
        ("extern __shared__ float tile[];", False),
    ],
)
def test_attempt_that_allocates_without_torch_is_found(text: str, own_memory: bool) -> None:
    assert allocates(Attempt((("kernels/a.cu", text), ("model_new.py", "")))) is own_memory


def test_run_kills_the_process_group_after_the_time_limit(tmp_path: Path) -> None:
    folder, sign = tmp_path / "folder", tmp_path / "sign"
    folder.mkdir()
    late = f"(sleep 1.5; touch {sign}) & sleep 300"
    begun = time.monotonic()
    assert run(["/bin/sh", "-c", late], folder, 0.3) == (None, "")
    assert time.monotonic() - begun < 100  # usually below one second
    time.sleep(2.0)
    assert not sign.exists()


def test_tool_stops_while_another_process_uses_the_device(tmp_path: Path) -> None:
    folder, lock = tmp_path / "folder", DeviceLock(tmp_path / "lock")
    folder.mkdir()
    command = ["/bin/sh", "-c", "for i in 1 2 3 4 5; do date +%s.%N; sleep 0.2; done"]
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(run, command, folder, 100.0, lock)
        time.sleep(0.5)
        with lock.exclusive():
            begun = time.time()
            time.sleep(1.5)
            ended = time.time()
    status, text = found.result()
    times = [float(line) for line in text.split()]
    assert status == 0
    assert len(times) == 5
    assert not [at for at in times if begun < at < ended]


ESCAPED = """(setsid sh -c '(while true; do date +%s.%N > {sign}; sleep 0.1; done) &' &)
while [ ! -s {sign} ]; do sleep 0.05; done
sleep {seconds}
"""
"""Command that leaves a process in another session, with init or a subreaper as its parent."""


@pytest.mark.parametrize(("seconds", "limit_s"), [(0.3, 100.0), (600, 4.0)])
def test_run_kills_processes_that_left_the_group(
    tmp_path: Path, seconds: float, limit_s: float
) -> None:
    folder, sign = tmp_path / "folder", tmp_path / "sign"
    folder.mkdir()
    status, _ = run(["/bin/sh", "-c", ESCAPED.format(sign=sign, seconds=seconds)], folder, limit_s)
    assert status == (0 if seconds < 1 else None)
    last = sign.read_text()
    time.sleep(0.5)
    assert sign.read_text() == last


def test_process_that_left_the_group_stops_with_the_tool(tmp_path: Path) -> None:
    folder, sign, lock = tmp_path / "folder", tmp_path / "sign", DeviceLock(tmp_path / "lock")
    folder.mkdir()
    with ThreadPoolExecutor(1) as executor:
        command = ["/bin/sh", "-c", ESCAPED.format(sign=sign, seconds=1.5)]
        found = executor.submit(run, command, folder, 100.0, lock)
        while not sign.exists():
            time.sleep(0.01)
        with lock.exclusive():
            last = sign.read_text()
            time.sleep(0.7)
            assert sign.read_text() == last
    assert found.result()[0] == 0


HOSTILE_REPORTS = {
    "pipe": "os.mkfifo(path)",
    "endless": "os.symlink('/dev/zero', path)",
    "folder": "os.mkdir(path)",
    "deep": "open(path, 'w').write('[' * 200_000)",
    "elsewhere": "os.symlink('{other}', path)",
}


@pytest.mark.parametrize("written", HOSTILE_REPORTS.values(), ids=HOSTILE_REPORTS)
def test_list_of_reached_functions_is_a_plain_file(
    tool: Path, referee: Referee, tmp_path: Path, written: str
) -> None:
    """The attempt's process writes the list, so it must neither hang the judge nor name a file."""
    other = tmp_path / "other.json"
    other.write_text('["secret"]')
    body = f"""
    import os
    path = os.path.join(os.environ["HOME"], "reached.json")
    {written.format(other=other)}
    import sys; sys.stdout.write("========= ERROR SUMMARY: 0 errors"); sys.stdout.flush()
    os._exit(0)
    """
    found = checked(tool, referee, body)
    assert {r.reached for r in found.reports} == {()}


def test_folder_that_cannot_be_removed_does_not_stop_the_check(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt may leave files in a tool's folder between two cuts of the inputs."""
    size = sum(leaf.nbytes for leaf in referee.facts.layouts.inputs.leaves)
    monkeypatch.setattr(sanitize, "LARGE_BYTES", size - 1)
    monkeypatch.setattr(sanitize, "TAIL", 1)
    plain = shutil.rmtree
    monkeypatch.setattr(
        sanitize.shutil,
        "rmtree",
        lambda path, **how: Path(path).name == SHARED and plain(path, **how),
    )
    rows = referee.facts.layouts.inputs.leaves[0].shape[0]
    found = checked(tool, referee, f"assert len(x) == {rows}; return self.honest(x)")
    assert {r.outcome for r in found.reports} == {Outcome.CLEAN}
    for left in referee.folder.glob("sanitize-*"):
        plain(left)


def on_few_rows(
    tool: Path,
    referee: Referee,
    monkeypatch: pytest.MonkeyPatch,
    stand_in: str,
    body: str,
    budget_s: float = 60.0,
) -> tuple[Check, int, int]:
    """Check a candidate with `stand_in`, racecheck also on few rows; return the check, the few rows
    and all rows."""
    rows = referee.facts.layouts.inputs.leaves[0].shape[0]
    monkeypatch.setattr(tool_runs, "FEW_ABOVE", 0)
    monkeypatch.setattr(tool_runs, "FEW_BYTES", 1)
    tool.write_text(stand_in)
    return checked(tool, referee, body, budget_s=budget_s), 1, rows


def stand_in(race: str) -> str:
    """Return a tool whose racecheck runs the shell text `race`; `$WHOLE` is 1 if it sees all
    rows."""
    # The folder of few rows has the smaller inputs; the tool waits for them like the program.
    wait = 'while [ ! -e "$TMPDIR/inputs.pt" ]; do sleep 0.01; done\n'
    size = 'WHOLE=0; test $(stat -c %s "$TMPDIR/inputs.pt") -gt 50000 && WHOLE=1\n'
    picked = f'case "$*" in *racecheck*) {wait}{size}{race};; esac\n'
    return STAND_IN.replace("while [", f"{picked}while [", 1)


CALLED = """
    from cuagent.kernels.calls import Launcher
    import types
    plain = types.SimpleNamespace(prototype=types.SimpleNamespace(name="relu_kernel"))
    try:
        Launcher.__call__(plain)
    except AttributeError:
        pass
    return self.honest(x)
"""
"""Candidate whose process records a call of the library function relu_kernel."""


def test_race_check_on_few_rows_counts_if_the_one_on_all_rows_does_not_end(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = stand_in("test $WHOLE = 1 && sleep 600")
    found, few, rows = on_few_rows(tool, referee, monkeypatch, slow, CALLED, budget_s=25.0)
    assert [(r.tool, r.outcome) for r in found.reports] == [(t, Outcome.CLEAN) for t in TOOLS]
    assert found.raced == (few, rows)
    assert f"racecheck on {few} of {rows} rows" in found.coverage


def test_race_check_on_few_rows_does_not_suffice_if_it_ran_less(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel for many rows is not checked by a call on one."""
    rows = referee.facts.layouts.inputs.leaves[0].shape[0]
    body = f"if len(x) < {rows}: return self.honest(x){CALLED}"
    race = 'test $WHOLE = 1 && sleep 2 && echo "========= Error: Race at relu_kernel()" && exit 99'
    found, *_ = on_few_rows(tool, referee, monkeypatch, stand_in(race), body)
    assert found.raced is None
    assert found.reports[1].outcome is Outcome.FAULTY


def test_clean_race_check_on_few_rows_hides_no_race_on_all_rows(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = 'test $WHOLE = 1 && sleep 5 && echo "========= Error: Race at relu_kernel()" && exit 99'
    found, *_ = on_few_rows(tool, referee, monkeypatch, stand_in(race), CALLED)
    assert found.reports[1].outcome is Outcome.FAULTY
    assert found.raced is None


def test_race_on_few_rows_alone_does_not_reject(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel written for the task's number of rows may fail on fewer."""
    race = 'test $WHOLE = 0 && echo "========= Error: Race at relu_kernel()" && exit 99'
    found, *_ = on_few_rows(tool, referee, monkeypatch, stand_in(race), CALLED)
    assert found.reports[1].outcome is Outcome.CLEAN, "nothing was found on all rows"
    assert found.raced is None


INTERNAL = "========= Internal Sanitizer Error: The Sanitizer ran out of memory"
EXCEPTION = (
    "========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception"
)
ENDLESS_ON_ALL_ROWS = "test $WHOLE = 1 && sleep 600"


def test_race_check_stops_if_the_tool_itself_failed_on_few_rows(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = "frame 3: a race between handlers in relu_kernel"
    failed = f'test $WHOLE = 0 && echo "{INTERNAL}" && echo "{trace}" && exit 99'
    failed += f"; {ENDLESS_ON_ALL_ROWS}"
    found, *_ = on_few_rows(tool, referee, monkeypatch, stand_in(failed), CALLED, budget_s=300.0)
    assert found.reports[1].outcome is Outcome.UNKNOWN
    assert "Internal Sanitizer Error" in found.reports[1].text
    assert found.raced is None
    assert found.seconds < 200  # usually below 15 s


def test_race_is_found_although_the_kernel_leaves_its_memory_on_few_rows(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = 'echo "========= Error: Race at relu_kernel()" && exit 99'
    body = f'test $WHOLE = 0 && echo "{EXCEPTION}" && exit 99; sleep 8; {race}'
    found, *_ = on_few_rows(tool, referee, monkeypatch, stand_in(body), CALLED)
    assert found.reports[1].outcome is Outcome.FAULTY


def test_race_check_stops_if_few_rows_show_that_it_cannot_end(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the second call on one row, all 64 rows take over 600 s; the first call shows nothing."""
    monkeypatch.setattr(race_limit, "FEW_LATE_S", 600.0)
    body = f"""
    import time
    if len(x) == 1:
        time.sleep(getattr(self, "seconds", 0.1))
        self.seconds = 10.0{CALLED}"""
    slow = stand_in(ENDLESS_ON_ALL_ROWS)
    found, few, rows = on_few_rows(tool, referee, monkeypatch, slow, body, budget_s=180.0)
    assert found.reports[1].outcome is Outcome.CLEAN
    assert found.raced == (few, rows)
    assert found.seconds < 150  # usually below 20 s


def test_few_rows_are_not_late_while_they_only_measure_the_time(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"""
    import time
    if len(x) == 1:
        time.sleep(getattr(self, "seconds", 0.1))
        self.seconds = 60.0{CALLED}"""
    race = 'echo "========= Error: Race at relu_kernel()" && exit 99'
    late = stand_in(f"test $WHOLE = 1 && sleep 15 && {race}")
    found, *_ = on_few_rows(tool, referee, monkeypatch, late, body, budget_s=300.0)
    assert found.reports[1].outcome is Outcome.FAULTY
    assert found.seconds < 60, "few rows are not awaited after a result on all rows"


def test_interrupt_ends_the_tools(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_limit, "FEW_LATE_S", 600.0)
    begun = time.monotonic()
    interrupt = functools.partial(signal.pthread_kill, threading.get_ident(), signal.SIGINT)
    timer = threading.Timer(6.0, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        on_few_rows(tool, referee, monkeypatch, stand_in("sleep 600"), CALLED, budget_s=45.0)
    timer.join()
    running = [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]
    assert running == []
    assert time.monotonic() - begun < 30  # usually below 10 s


def test_call_that_only_measures_the_time_may_fail(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"""
    if hasattr(self, "called"):
        raise RuntimeError("no second call under a tool")
    self.called = True{CALLED}"""
    slow = stand_in(ENDLESS_ON_ALL_ROWS)
    found, few, rows = on_few_rows(tool, referee, monkeypatch, slow, body, budget_s=25.0)
    assert found.reports[1].outcome is Outcome.CLEAN
    assert found.raced == (few, rows)


def test_race_check_stops_if_even_few_rows_are_late(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = stand_in("sleep 600")
    found, *_ = on_few_rows(tool, referee, monkeypatch, endless, CALLED, budget_s=300.0)
    assert found.reports[1].outcome is Outcome.UNKNOWN
    assert "few rows took 5 s longer than the other tools" in found.reports[1].text
    assert found.raced is None
    assert found.seconds < 200  # usually below 20 s


CALL = ("relu_kernel",)
FEW = Report("racecheck", Outcome.CLEAN, reached=CALL, call_s=2.0)
FAILED = Report("racecheck", Outcome.UNKNOWN, "Internal Sanitizer Error: it failed")
OUTSIDE = Report("racecheck", Outcome.UNKNOWN, EXCEPTION)
ENDED = Report("memcheck", Outcome.CLEAN, reached=CALL)


@pytest.mark.parametrize(
    ("few", "scale", "waited_s", "stops"),
    [
        (FEW, 16.0, 0.0, True),  # 32 s in place of 10
        (FEW, 14.0, 0.0, False),  # 28 s: with the GPU for itself it may end
        (replace(FEW, reached=()), 16.0, 60.0, False),  # other kernels may take less
        (replace(FEW, call_s=None), 1e6, 60.0, False),
        (replace(FEW, outcome=Outcome.FAULTY), 1e6, 60.0, False),  # only all rows can reject
        (replace(FEW, outcome=Outcome.UNKNOWN), 1e6, 60.0, False),
        (FAILED, 1.0, 0.0, True),
        (replace(FAILED, outcome=Outcome.FAULTY), 1.0, 0.0, False),
        (OUTSIDE, 1e6, 60.0, False),  # the kernel may be written for all rows
        (None, 1e6, 4.9, False),
        (None, 4.0, 5.1, True),
        (None, 2.0, 60.0, False),  # all rows may end soon after
    ],
)
def test_race_check_stops_only_if_it_cannot_end(
    few: Report | None, scale: float, waited_s: float, stops: bool
) -> None:
    why = why_hopeless(few, [ENDED], scale=scale, window_s=10.0, waited_s=waited_s)
    assert bool(why) is stops


@pytest.mark.parametrize(
    ("few", "clean_s", "stops"),
    [
        (FEW, CLEAN_LATE_S + 3 * 2.0 * 4 + 0.1, True),
        (FEW, CLEAN_LATE_S + 3 * 2.0 * 4 - 0.1, False),
        (replace(FEW, call_s=0.01), CLEAN_LATE_S + 0.2, True),
        (replace(FEW, reached=()), 60.0, False),  # other kernels may race
        (replace(FEW, outcome=Outcome.FAULTY), 60.0, False),  # only all rows can reject
    ],
)
def test_race_check_stops_some_time_after_a_clean_one_on_few_rows(
    few: Report, clean_s: float, stops: bool
) -> None:
    why = why_hopeless(few, [ENDED], scale=4.0, window_s=10.0, waited_s=0.0, clean_s=clean_s)
    assert bool(why) is stops


@pytest.mark.parametrize("few", [FEW, None])
def test_tools_that_could_not_run_do_not_stop_the_race_check(few: Report | None) -> None:
    for others in ([], [replace(ENDED, outcome=Outcome.UNKNOWN)]):
        assert not why_hopeless(few, others, scale=1e6, window_s=10.0, waited_s=60.0)


def test_own_failure_of_the_race_check_is_no_race() -> None:
    failed = f"{INTERNAL}\n=========     at relu_kernel(float *)\n"
    assert read("racecheck", FOUND, failed, OWN).failed_itself
    outside = read("racecheck", FOUND, f"{EXCEPTION}\nat relu_kernel", OWN)
    assert (outside.outcome, outside.failed_itself) == (Outcome.UNKNOWN, False)
    invalid = f"{failed}========= Invalid __global__ read of size 4 bytes\n"
    assert read("racecheck", FOUND, invalid, OWN).outcome is Outcome.FAULTY
    race = f"{failed}========= Error: Race reported between Write access at relu_kernel(float *)\n"
    assert read("racecheck", FOUND, race, OWN).outcome is Outcome.FAULTY


def test_race_check_on_all_rows_goes_on_after_a_race_on_few(
    tool: Path, referee: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends long after the other tools and few rows."""
    error = 'echo "========= Error: Race at relu_kernel()" && exit 99'
    race = f"test $WHOLE = 1 && sleep 10; {error}"
    found, *_ = on_few_rows(tool, referee, monkeypatch, stand_in(race), CALLED)
    assert found.reports[1].outcome is Outcome.FAULTY


def test_few_rows_are_those_of_the_inputs_that_the_outputs_share() -> None:
    """The second factor of a product keeps its rows."""
    factors = [torch.empty(n, 16 << 20, dtype=torch.uint8, device="meta") for n in (4, 2)]
    assert tool_runs.few_rows(factors, 4) == 1
    assert [len(t) for t in tool_runs.first_rows(factors, 4, 1)] == [1, 2]


@pytest.mark.parametrize(
    ("rows", "row_bytes", "few"),
    [(16, 64 << 20, 1), (128, 1 << 20, 2), (48, 1 << 19, 4), (512, 8192, None), (7, 8 << 20, 1)],
)
def test_few_rows_divide_all_rows(rows: int, row_bytes: int, few: int | None) -> None:
    given = torch.empty(rows, row_bytes, dtype=torch.uint8, device="meta")
    assert tool_runs.few_rows([given], rows) == few
    assert tool_runs.few_rows([given], None) is None


TRITON = "@triton.jit\ndef conv_kernel(x): pass\n"


@pytest.mark.parametrize(
    ("more", "racing"),
    [
        ("", set()),
        ('SOURCE = "__global__ void add_kernel(float* x) {}"', {"add_kernel"}),
        ('SOURCE = "__global__ void conv_kernel(float* x) {}"', {"conv_kernel"}),
        ('y = tl.inline_asm_elementwise("ld.shared.b32 $0, [$1];")', {"conv_kernel"}),
        ("from triton.experimental import gluon", {"conv_kernel"}),
    ],
)
def test_race_check_leaves_out_kernels_whose_barriers_triton_places(
    more: str, racing: set[str]
) -> None:
    attempt = Attempt((("model_new.py", TRITON + more),))
    assert kernels_with_barriers(attempt, own_kernels(attempt)) == racing


def test_coverage_names_the_kernels_that_the_race_check_left_out() -> None:
    check = Check((ENDED,), ("add_kernel", "conv_kernel"), triton=1)
    assert "racecheck without 1 of Triton" in check.coverage
