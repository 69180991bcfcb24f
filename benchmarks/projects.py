"""Take modules out of users' scripts, make them faster, and run the scripts with the packages.

    python benchmarks/projects.py [NAME ...] [--device cuda] [--search] [--json FILE] [--out DIR]

The folder `projects` contains seven scripts as users write them. For each script, `cuagent capture`
records a module, and the expert's first candidate is judged on all recorded shapes (with
`--search`, `cuagent optimize` runs instead). The result is exported as a package. A kernel that is
not faster is exported too, to show its cost.

Then the package is installed into a new virtual environment without cuagent, where the script runs
in float64, without, and with the package. The results with the package may have three times the
error of those without it. Pairs of timed runs follow, in alternation; a lock keeps scripts from
being timed at the same time. `--jobs` projects are processed at a time. The program prints the
verdict, the errors, and the wall and processor time of a step without and with the package, with
the interval of their ratio over the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from projects_runs import ProjectFailed, compare, last_line, run

SHARED = "--with-lock-of-the-gpu"
"""First argument of this program where it runs cuagent's command line for one of several
projects."""


@dataclass(frozen=True)
class Project:
    """A user's script, and the name of the module in it that is made faster."""

    name: str
    module: str
    backward: bool = False


PROJECTS = {
    project.name: project
    for project in (
        Project("train_lm", "loss", backward=True),
        Project("encoder", "encoder.layer.0"),
        Project("llama", "layers.0.mlp"),
        Project("vision", "blocks.0"),
        Project("gru", "Decoder"),
        Project("dlrm", "DLRM"),
        Project("unet", "down.0"),
    )
}


def main() -> None:
    """Process each project and print its lines. The exit code is 1 if a step fails or the results
    of a script differ."""
    if sys.argv[1:2] == [SHARED]:
        _cuagent_with_lock(sys.argv[2:])
        return
    given = _arguments()
    chosen = [PROJECTS[name] for name in given.names or PROJECTS]
    records: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="projects-") as scratch:
        given.out = (given.out or Path(scratch)).resolve()
        given.out.mkdir(parents=True, exist_ok=True)
        # All packages first: no script is timed while a judge uses the device.
        for work in packaged, ran:
            with ProcessPoolExecutor(
                given.jobs, get_context("spawn"), max_tasks_per_child=1
            ) as pool:
                futures: dict[Future[dict[str, Any]], Project] = {
                    pool.submit(work, project, given): project
                    for project in chosen
                    if "failed" not in records.get(project.name, {})
                }
                for future in as_completed(futures):
                    name = futures[future].name
                    records[name] = records.get(name, {}) | future.result()
                    print(f"{name}: {_text(records[name])}", flush=True)
                    if given.json is not None:
                        _write(given, records)
    raise SystemExit(any("failed" in r or not r["same"] for r in records.values()))


def _arguments() -> argparse.Namespace:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROJECTS))
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=found, choices=["cpu", "cuda"])
    parser.add_argument("--search", action="store_true", help="run cuagent optimize")
    parser.add_argument("--max-time", default="180s", help="limit of each cuagent optimize")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of timed runs of a script")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a timed run")
    parser.add_argument("--jobs", type=int, help="projects at a time; default: 4 on a GPU, else 1")
    parser.add_argument(
        "--out", type=Path, help="folder for tasks, runs and packages, to keep them"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    given = parser.parse_args()
    if given.jobs is None:
        given.jobs = 4 if given.device == "cuda" else 1
    unknown = [name for name in given.names if name not in PROJECTS]
    if unknown:
        parser.error(f"no project {unknown[0]!r}; choose from {', '.join(PROJECTS)}")
    return given


def _write(given: argparse.Namespace, records: dict[str, Any]) -> None:
    import torch

    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    settings = {"search": given.search, "pairs": given.pairs, "seconds": given.seconds}
    settings |= {"device": name, "torch": torch.__version__, "jobs": given.jobs}
    given.json.write_text(json.dumps({"settings": settings, "projects": records}, indent=1) + "\n")


def packaged(project: Project, given: argparse.Namespace) -> dict[str, Any]:
    """Capture, judge and export one module; return the `verdict` as text and the seconds, or why
    it `failed`."""
    begin = time.monotonic()
    folder = given.out / project.name
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cuagent", "capture", f"{project.name}.py"]
    command += ["--module", project.module, "--out", str(folder / "task")]
    done = run([*command, "--", "--device", given.device])
    if done.returncode:
        return {"failed": f"not captured: {last_line(done.stderr)}"}
    captured = time.monotonic()
    try:
        found = (
            _searched(project, folder, given) if given.search else _judged(project, folder, given)
        )
    except ProjectFailed as error:
        return {"failed": str(error)}
    seconds = {"capture": captured - begin, "package": time.monotonic() - captured}
    return found | {"seconds": {name: round(s, 1) for name, s in seconds.items()}}


def ran(project: Project, given: argparse.Namespace) -> dict[str, Any]:
    """Install the package and run the script without and with it; return what `compare` returns,
    or why it `failed`."""
    try:
        return compare(
            project.name,
            given.out / project.name / "package",
            device=given.device,
            pairs=given.pairs,
            seconds=given.seconds,
            lock=given.out / "scripts.lock",
        )
    except ProjectFailed as error:
        return {"failed": str(error)}


def _text(record: dict[str, Any]) -> str:
    """Return the newest part of a record as text."""
    if "failed" in record:
        return f"FAILED: {record['failed']}"
    if "same" not in record:
        took = " + ".join(f"{s:.0f} s {name}" for name, s in record["seconds"].items())
        how = record.get("exported", "the result")
        return f"{record['verdict']} ({took}{'' if how == 'the result' else f'; exported {how}'})"
    parts = ["same results" if record["same"] else "DIFFERENT results"]
    for kind in record["errors"]["before"]:
        values = [record["errors"][word][kind] for word in ("before", "after", "difference")]
        parts.append("error of {} {:.1e} -> {:.1e} (difference {:.1e})".format(kind, *values))
    for word, kind in ("wall", "wall_s"), ("processor", "process_s"):
        found = record[kind]
        low, high = found["interval"] or (found["ratio"], found["ratio"])
        parts.append(
            f"{word} {found['before'] * 1e3:.3f} -> {found['after'] * 1e3:.3f} ms a step "
            f"({found['ratio']:.2f}x [{low:.2f}, {high:.2f}])"
        )
    return "; ".join([*parts, *record["warned"]])


def _lock(given: argparse.Namespace) -> Path | None:
    """Return the lock file of the GPU if several projects use it."""
    from cuagent.bench.lock_file import lock_file

    if given.jobs == 1 or given.device != "cuda":
        return None
    return lock_file(os.environ.get("CUDA_VISIBLE_DEVICES", "0"))


def _share(lock: Path) -> None:
    """Let all judges of this process share the GPU by its lock file: they time alone on it."""
    from cuagent import judge
    from cuagent.device_lock import DeviceLock

    class SharedJudge(judge.LocalJudge):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{"device_lock": DeviceLock(lock)} | options)

    judge.LocalJudge = SharedJudge  # type: ignore[misc]


def _cuagent_with_lock(arguments: list[str]) -> None:
    """Run cuagent's command line with the arguments from the third on; the first two are the
    number of torch's compiling processes and the lock file of the GPU."""
    from cuagent.cli.main import main as cuagent
    from cuagent.worker.arms import COMPILERS

    _share(Path(arguments[1]))
    os.environ.setdefault(COMPILERS, arguments[0])  # each process would use all processors
    sys.argv = ["cuagent", *arguments[2:]]
    cuagent()


def _judged(project: Project, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Judge the expert's first candidate with quick timing and export it if it is accepted; return
    its verdict. Raises ProjectFailed."""
    if (lock := _lock(given)) is not None:
        _share(lock)
    from cuagent.attempt import Attempt
    from cuagent.capture.shapes import judge_shapes
    from cuagent.cli.script import captured_of
    from cuagent.expert.candidate import Options, make_candidate
    from cuagent.expert.capture.subject import open_subject
    from cuagent.judge import LocalJudge
    from cuagent.package import export
    from cuagent.task import load_task
    from cuagent.task.step import training_step
    from cuagent.timing import Effort

    task = load_task(str(folder / "task"), device=given.device)
    if project.backward:
        task = training_step(task)
    candidate = make_candidate(open_subject(task), Options())
    if candidate is None:
        raise ProjectFailed("the expert has no candidate")
    attempt = Attempt(tuple(candidate.files.items()))
    with LocalJudge(task) as judge:
        judgement = judge.judge(attempt, Effort.QUICK)
    verdict, timing = judgement.verdict, judgement.timing
    if not verdict.accepted:
        raise ProjectFailed(f"rejected, {verdict.reason}: {' '.join(verdict.detail.split())[:200]}")
    found = judge_shapes(task, attempt, judgement)
    captured = captured_of(task, folder, attempt.digest)
    if found is not None and captured is not None:
        rest = tuple(s.domain for s in found.shapes if s.domain and s.task != "task.py")
        captured = replace(captured, shapes=rest)
    export(attempt, task, judgement, folder / "package", captured=captured)
    ratios = timing.ratios.items() if timing is not None else ()
    texts = [f"{r.value:.2f}x [{r.low:.2f}, {r.high:.2f}] over {name}" for name, r in ratios]
    return {"verdict": f"accepted, {'; '.join(texts)}"}


def _searched(project: Project, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Run `cuagent optimize` and export its result, or its best attempt without one; return the
    result. Raises ProjectFailed."""
    base: list[Any] = [sys.executable, "-m", "cuagent"]
    lock = _lock(given)
    optimize = base
    if lock is not None:
        compilers = max(1, (os.cpu_count() or 1) // given.jobs)
        optimize = [sys.executable, Path(__file__).resolve(), SHARED, compilers, lock]
    runs = ["--run-dir", str(folder / "runs")]
    command = [*optimize, "optimize", str(folder / "task"), "--model", "expert", *runs]
    command += ["--device", given.device, "--output-format", "json"]
    command += ["--max-time", given.max_time]
    done = run([*command, *(["--backward"] if project.backward else [])])
    if done.returncode:
        raise ProjectFailed(f"not optimized: {last_line(done.stderr)}")
    (folder / "optimize.txt").write_text(done.stderr)
    lines = done.stderr.splitlines()
    found: dict[str, Any] = json.loads(done.stdout)
    command = [*base, "export", "latest", "--out", str(folder / "package"), *runs]
    done = run(command)
    exported = "the result"
    if done.returncode and found["attempt"] is not None:
        chosen = [*command, "--attempt", str(found["attempt"])]
        for options, word in ([], "--attempt"), (["--force"], "--attempt and --force"):
            if done.returncode:
                done, exported = run([*chosen, *options]), f"with {word}"
    if done.returncode:
        raise ProjectFailed(f"not exported: {last_line(done.stderr)}")
    return {
        "verdict": found["summary"].strip().partition("\n")[0],
        "result": found["result"],
        "exported": exported,
        "script": [x.removeprefix("cuagent: ").strip() for x in lines if x.startswith("cuagent: ")],
        "optimize_s": found["duration_s"],
    }


if __name__ == "__main__":
    main()
