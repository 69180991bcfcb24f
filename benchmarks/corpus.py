"""Judge exploits, honest candidates and seeded bugs with cuagent and with other projects' rules.

    python benchmarks/corpus.py [--kernelbench PATH] [--cuda-agent PATH] [--json OUT] [--doc OUT]
                                [--only REGEX] [--only-cuda] [--device cuda] [--precision fp32]
                                [--jobs N] [--seconds S]

The other projects are given as checkouts; `rules.py` runs their own functions. They are not given
candidates that could harm the machine or that cheat a clock, nor, without a GPU, candidates for
CUDA; cuagent runs the harmful ones in its sandbox.

- `--doc` replaces the text of a page after `<!-- results -->`.
- `--only-cuda` judges only the candidates that need a GPU, which a run on the CPU leaves out.
- `--device cuda` judges on the GPU every candidate that has no C++ kernel.
- `--precision fp32` judges candidates that name no precision under `fp32` instead of `match`.
- `--jobs N` judges in N processes; only one times at a time.
- After `--seconds S` the processes end, and the candidates without a result count as not run.

Exit 1 if cuagent accepted an exploit or a bug, or rejected an honest candidate.
"""

from __future__ import annotations

import argparse
import json
import platform
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CORPUS = HERE.parent / "tests" / "corpus"
# The project's root comes last, for a checkout that is not installed.
sys.path[:0], sys.path[len(sys.path) :] = [str(CORPUS)], [str(HERE.parent)]

from corpus import (  # noqa: E402
    Candidate,
    everything,
    judge_order,
    moved_to_cuda,
    needs_cpu,
    task_path,
)
from corpus_tables import OURS, summary, table  # noqa: E402
from judging import (  # noqa: E402
    Outcome,
    judge_ended,
    not_run,
    open_judges,
    outcome_of,
    request,
)

MARK = "<!-- results -->"
PROGRESS = 20
"""Number of candidates between two progress lines, if stderr is not a terminal."""


def main() -> int:
    options = _options()
    pattern = re.compile(options.only)
    candidates = [
        replace(c, precision=options.precision) if c.precision == "match" else c
        for c in everything()
        if pattern.search(_key(c)) and (c.device == "cuda" or not options.only_cuda)
    ]
    if options.only_cuda and not _cuda():
        print("--only-cuda: torch sees no CUDA device", file=sys.stderr)
        return 2
    if options.device == "cuda":
        candidates = [c if _stays(c) else moved_to_cuda(c) for c in candidates]
    checkouts = {"kernelbench": options.kernelbench, "cuda-agent": options.cuda_agent}
    ended = time.monotonic() + options.seconds
    results = {OURS: _ours(candidates, options.device, options.jobs, ended)}
    for name, checkout in checkouts.items():
        if checkout is not None:
            results[name] = _theirs(name, checkout, candidates)
    rows = [_row(candidate, results) for candidate in candidates]
    counts = summary(rows, list(results))
    print(counts)
    if options.json:
        Path(options.json).write_text(_json(rows, options.precision))
    if options.doc:
        page = Path(options.doc)
        head = page.read_text().partition(MARK)[0] if page.is_file() else ""
        page.write_text(f"{head}{MARK}\n\n{counts}\n\n{table(rows, list(results))}\n")
    wrong = [row for row in rows if row[OURS]["right"] is False]
    for row in wrong:
        print(f"{row['kind']} {row['name']}: {row[OURS]['word']}: {row[OURS]['detail']}")
    return int(bool(wrong))


def _json(rows: list[dict[str, Any]], precision: str) -> str:
    """Return the results as JSON, one candidate per line."""
    about = _machine() | {"precision": precision}
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{{"about": {json.dumps(about)}, "rows": [\n{lines}\n]}}\n'


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--cuda-agent", type=Path)
    parser.add_argument("--json")
    parser.add_argument("--doc")
    parser.add_argument("--only", default="", help="judge only matches, such as honest/softmax")
    parser.add_argument(
        "--only-cuda", action="store_true", help="judge only candidates that need a GPU"
    )
    parser.add_argument(
        "--device",
        choices=("own", "cuda"),
        default="own",
        help="judge each candidate on its own device, or all without a C++ kernel on the GPU",
    )
    parser.add_argument(
        "--precision", choices=("match", "fp32", "tf32", "bf16", "fp16"), default="match"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes that judge")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit")
    return parser.parse_args()


def _ours(
    candidates: list[Candidate], device: str, jobs: int, ended: float
) -> dict[str, dict[str, Any]]:
    """Return cuagent's outcome for each candidate, by the candidate's key.

    Candidates without a verdict at the time `ended` (a time.monotonic() value) have the outcome
    "out of time".
    """
    outcomes: dict[str, Outcome] = {}
    groups: list[list[Candidate]] = []
    for _, group in groupby(sorted(candidates, key=judge_order), key=lambda c: judge_order(c)[:4]):
        runnable = []
        for candidate in group:
            if candidate.device == "cuda" and not _cuda():
                outcomes[_key(candidate)] = not_run("needs CUDA")
            elif candidate.device != "cuda" and device == "cuda":
                outcomes[_key(candidate)] = not_run("CPU kernel")
            else:
                runnable.append(candidate)
        groups += [runnable] if runnable else []
    judged = _judged_here(groups) if jobs == 1 else _judged_by_jobs(groups, jobs, ended)
    total = sum(map(len, groups))
    for number, (candidate, outcome) in enumerate(judged, 1):
        outcomes[_key(candidate)] = outcome
        _report_progress(number, total, candidate)
        if time.monotonic() > ended:
            break
    judged.close()
    for candidate in candidates:
        outcomes.setdefault(_key(candidate), not_run("out of time"))
    return {key: asdict(outcome) for key, outcome in outcomes.items()}


def _report_progress(number: int, total: int, candidate: Candidate) -> None:
    if sys.stderr.isatty():
        print(f"\r{number}/{total} {candidate.name:<40}", end="", file=sys.stderr, flush=True)
    elif number % PROGRESS == 0 or number == total:
        print(f"{number}/{total} {candidate.name}", file=sys.stderr, flush=True)


def _judged_here(groups: list[list[Candidate]]) -> Generator[tuple[Candidate, Outcome]]:
    with open_judges() as opened:
        for group in groups:
            for candidate in group:
                yield candidate, outcome_of(opened, candidate)


def _judged_by_jobs(
    groups: list[list[Candidate]], jobs: int, ended: float
) -> Generator[tuple[Candidate, Outcome]]:
    """Judge groups of candidates in `jobs` processes; yield each candidate with its outcome.

    A process that is free takes the largest remaining group. Stops at the time `ended` (a
    time.monotonic() value), even during a verdict.
    """
    tasks: queue.SimpleQueue[list[Candidate]] = queue.SimpleQueue()
    outcomes: queue.SimpleQueue[tuple[Candidate, Outcome] | BaseException] = queue.SimpleQueue()
    stop = threading.Event()
    running: set[subprocess.Popen[str]] = set()
    for group in sorted(groups, key=len, reverse=True):
        tasks.put(group)

    def work(lock: Path) -> None:
        try:
            _serve_groups(tasks, outcomes, lock, stop, running)
        except BaseException as error:
            outcomes.put(error)
            raise

    with tempfile.TemporaryDirectory(prefix="corpus-") as folder, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            pool.submit(work, Path(folder, "device"))
        try:
            for _ in range(sum(map(len, groups))):
                left = ended - time.monotonic()
                result = outcomes.get(timeout=None if left == float("inf") else max(0.0, left))
                if isinstance(result, BaseException):
                    raise result
                yield result
        except queue.Empty:
            pass
        finally:
            stop.set()
            for process in tuple(running):  # the process's fork server ends too
                process.kill()


def _serve_groups(
    tasks: queue.SimpleQueue[list[Candidate]],
    outcomes: queue.SimpleQueue[tuple[Candidate, Outcome] | BaseException],
    lock: Path,
    stop: threading.Event,
    running: set[subprocess.Popen[str]],
) -> None:
    """Send groups of candidates from `tasks` to one judging process until no group is left.

    If the process dies, another one replaces it.
    """
    group: list[Candidate] = []
    while not stop.is_set() and (group or not tasks.empty()):
        with _judge_process(lock, running) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            while not stop.is_set() and process.poll() is None:
                try:
                    group = group or list(tasks.get_nowait())
                except queue.Empty:
                    return
                candidate, start, answer = group.pop(0), time.perf_counter(), ""
                try:
                    process.stdin.write(request(candidate))
                    process.stdin.flush()
                    answer = process.stdout.readline()
                except BrokenPipeError:
                    pass
                if answer.endswith("\n"):
                    outcomes.put((candidate, Outcome(**json.loads(answer))))
                else:
                    seconds = time.perf_counter() - start
                    outcomes.put((candidate, judge_ended(process.wait(), seconds)))


@contextmanager
def _judge_process(
    lock: Path, running: set[subprocess.Popen[str]]
) -> Iterator[subprocess.Popen[str]]:
    """Yield a new process that runs `judging.serve`. At the end of the context its stdin is closed,
    which ends it."""
    program = (
        f"import sys; sys.path.insert(0, {str(CORPUS)!r}); sys.path.append({str(HERE.parent)!r}); "
        "import judging; judging.serve()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    running.add(process)
    try:
        yield process
    finally:
        running.discard(process)
        process.communicate()


def _theirs(name: str, checkout: Path, candidates: list[Candidate]) -> dict[str, dict[str, Any]]:
    """Return the outcomes of another project's correctness rule, by candidate key.

    Candidates of a task whose own reference that rule rejects are not run.
    """
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "rules.py"), name, str(checkout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(task: str, files: Iterable[tuple[str, str]]) -> dict[str, Any]:
            attempt = Path(folder, "candidate")
            shutil.rmtree(attempt, ignore_errors=True)
            for path, text in files:
                target = attempt / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            print(
                json.dumps({"task": str(task_path(task)), "candidate": str(attempt)}),
                file=process.stdin,
                flush=True,
            )
            return json.loads(process.stdout.readline())

        rejection = {}
        for task in {c.task for c in candidates}:
            text = task_path(task).read_text().replace("class Model(", "class ModelNew(")
            answer = ask(task, [("model_new.py", text)])
            rejection[task] = "" if answer["word"] == "passes" else answer["detail"]
            if (
                answer["word"] != "passes"
                and name == "cuda-agent"
                and "not allowed" in answer["detail"]
            ):
                # The rule forbids torch.nn.functional to candidates, not to references.
                rejection[task] = ""
        for candidate in candidates:
            if candidate.device == "cuda" and not _cuda():
                answer = _not_run("needs CUDA")
            elif candidate.timed:
                answer = _not_run("a cheat of timing, and the rule's clock needs CUDA")
            elif candidate.harm:
                answer = _not_run(f"the rule has no sandbox: {candidate.harm}")
            elif rejection[candidate.task]:
                answer = _not_run(
                    f"the rule rejects this task's own reference: {rejection[candidate.task]}"
                )
            else:
                answer = ask(candidate.task, candidate.attempt.files)
            found[_key(candidate)] = answer
        process.stdin.close()
        process.wait()
    return found


def _row(candidate: Candidate, results: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    fields = {
        name: getattr(candidate, name)
        for name in ("name", "kind", "row", "task", "device", "timed", "what", "expect", "open")
    }
    return fields | {judge: found[_key(candidate)] for judge, found in results.items()}


def _stays(candidate: Candidate) -> bool:
    """Return True if the option `--device cuda` leaves the candidate's device unchanged."""
    return candidate.device == "cuda" or needs_cpu(candidate)


def _key(candidate: Candidate) -> str:
    return f"{candidate.kind}/{candidate.name}"


def _not_run(why: str) -> dict[str, Any]:
    return asdict(not_run(why))


def _machine() -> dict[str, str]:
    import torch

    return {
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if _cuda() else "cpu",
    }


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
