"""Take modules out of users' scripts, make them faster, and run the scripts with the packages.

    python benchmarks/projects.py [NAME ...] [--device cuda] [--search] [--pairs 2] [--out DIR]

The folder `projects` contains seven scripts as users write them. For each script, `cuagent capture`
records a module, and the expert's first candidate is judged on all recorded shapes (with
`--search`, `cuagent optimize` runs instead). The result is exported as a package and installed into
a new virtual environment that cannot import cuagent. There the script runs without and with the
package, in alternation. The program prints the verdict, the difference of the script's results, and
the wall and processor time of a step before and after (the smallest of all runs). A kernel that is
not faster is exported too, to show its cost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "projects"


@dataclass(frozen=True)
class Project:
    """A user's script, and the name of the module in it that is made faster."""

    name: str
    module: str
    backward: bool = False
    tolerance: float = 1e-3
    """Largest accepted difference of the script's results, relative to their root mean square."""


PROJECTS = {
    project.name: project
    for project in (
        Project("train_lm", "loss", backward=True),
        Project("encoder", "encoder.layer.0", tolerance=0.1),
        Project("llama", "layers.0.mlp", tolerance=0.1),
        Project("vision", "blocks.0"),
        Project("gru", "Decoder"),
        Project("dlrm", "DLRM"),
        Project("unet", "down.0"),
    )
}


def main() -> None:
    """Process each project and print its lines. The exit code is 1 if the results of a script
    differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROJECTS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="projects judged at a time")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.device == "auto":
        import torch

        given.device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = [PROJECTS[name] for name in given.names or PROJECTS]
    with tempfile.TemporaryDirectory(prefix="projects-") as scratch:
        out = (given.out or Path(scratch)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        python = environment(out / "env")
        with ProcessPoolExecutor(given.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
            made = {
                project: pool.submit(packaged, project, out / project.name, given)
                for project in chosen
            }
            # Wait for all: scripts are timed when nothing else runs.
            texts = {project: future.result() for project, future in made.items()}
        failed = False
        for project, text in texts.items():
            print(f"{project.name}: {text}", flush=True)
            package = out / project.name / "package"
            if package.is_dir():
                compared = compare(project, package, python, given)
                print(f"  {compared['text']}", flush=True)
                failed |= not compared["same"]
    raise SystemExit(int(failed))


def environment(folder: Path) -> Path:
    """Create a virtual environment that has torch and cannot import cuagent; return the path of its
    Python."""
    import torch

    venv.create(folder, symlinks=True, with_pip=False, clear=True)
    site = _site(folder)
    packages = Path(torch.__file__).parents[1]
    text = f"{packages}\nimport sys; sys.modules['cuagent'] = None\n"
    (site / "torch_of_the_host.pth").write_text(text)
    python = folder / "bin" / "python"
    code = "import torch\ntry:\n import cuagent\nexcept ImportError: print('absent')"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    if done.stdout.strip() != "absent":
        raise SystemExit("the new environment can import cuagent")
    return python


def _site(folder: Path) -> Path:
    found = next(folder.glob("lib/python*/site-packages"))
    assert isinstance(found, Path)
    return found


def packaged(project: Project, folder: Path, given: argparse.Namespace) -> str:
    """Capture, judge and export one module in this process; return the text to print."""
    begin = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cuagent", "capture", f"{project.name}.py"]
    command += ["--module", project.module, "--out", str(folder / "task")]
    done = _run([*command, "--", "--device", given.device])
    if done.returncode:
        return f"not captured: {done.stderr.strip()[-400:]}"
    text = _searched(project, folder, given) if given.search else _judged(project, folder, given)
    return f"{text} ({time.monotonic() - begin:.0f} s)"


def _judged(project: Project, folder: Path, given: argparse.Namespace) -> str:
    """Judge the expert's first candidate with quick timing and export it if it is accepted; return
    the text to print."""
    from cuagent.attempt import Attempt
    from cuagent.bench.lock_file import lock_file
    from cuagent.capture.shapes import judge_shapes
    from cuagent.cli.script import captured_of
    from cuagent.device_lock import DeviceLock
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
        return "the expert has no candidate"
    attempt = Attempt(tuple(candidate.files.items()))
    shared = given.jobs > 1 and given.device == "cuda"
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    lock = DeviceLock(lock_file(number) if shared else None)
    with LocalJudge(task, device_lock=lock) as judge:
        judgement = judge.judge(attempt, Effort.QUICK)
    verdict, timing = judgement.verdict, judgement.timing
    if not verdict.accepted:
        return f"rejected, {verdict.reason}: {verdict.detail[:200]}"
    found = judge_shapes(task, attempt, judgement)
    captured = captured_of(task, folder, attempt.digest)
    if found is not None and captured is not None:
        rest = tuple(s.domain for s in found.shapes if s.domain and s.task != "task.py")
        captured = replace(captured, shapes=rest)
    export(attempt, task, judgement, folder / "package", captured=captured)
    ratios = timing.ratios.items() if timing is not None else ()
    texts = [f"{r.value:.2f}x [{r.low:.2f}, {r.high:.2f}] over {name}" for name, r in ratios]
    return f"accepted, {'; '.join(texts)}"


def _searched(project: Project, folder: Path, given: argparse.Namespace) -> str:
    """Run `cuagent optimize` and export its result, or its best attempt without one; return the
    text to print."""
    base = [sys.executable, "-m", "cuagent"]
    runs = ["--run-dir", str(folder / "runs")]
    command = [*base, "optimize", str(folder / "task"), "--model", "expert", *runs]
    command += ["--device", given.device, "--output-format", "json"]
    done = _run([*command, *(["--backward"] if project.backward else [])])
    if done.returncode:
        return f"not optimized: {done.stderr.strip()[-400:]}"
    result: dict[str, Any] = json.loads(done.stdout)
    command = [*base, "export", "latest", "--out", str(folder / "package"), *runs]
    done = _run(command)
    line = result["summary"].strip().partition("\n")[0]
    if done.returncode and result["attempt"] is not None:
        chosen = [*command, "--attempt", str(result["attempt"])]
        for options, word in ((), "--attempt"), (["--force"], "--force"):
            if done.returncode:
                done = _run([*chosen, *options])
                line += "" if done.returncode else f"; exported with {word}"
    return line if not done.returncode else f"{line}; {done.stderr.strip()[-200:]}"


def compare(
    project: Project, package: Path, python: Path, given: argparse.Namespace
) -> dict[str, Any]:
    """Install the package and run the script without and with it, `--pairs` times each.

    Returns `same` (True if the results differ by at most the tolerance), and the `text` to print.
    """
    name = json.loads((package / "task.json").read_text())["name"]
    install(package, python)
    times: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    files = {False: package.parent / "before.pt", True: package.parent / "after.pt"}
    warned = ""
    for number in range(2 * given.pairs):
        fast = number % 2 == 1
        command = [str(python), f"{project.name}.py", "--device", given.device]
        command += ["--save", str(files[fast]), *(["--package", name] if fast else [])]
        done = _run(command)
        if done.returncode:
            return {"same": False, "text": f"failed: {done.stderr.strip()[-600:]}"}
        times[fast].append(json.loads(done.stdout.strip().rpartition("\n")[2]))
        lines = [line for line in done.stderr.splitlines() if "RuntimeWarning" in line]
        warned = f"; {lines[0].partition('RuntimeWarning: ')[2]}" if lines and fast else warned
    worst = difference(*files.values())
    parts = [f"largest difference {worst:.1e} of the results' size"]
    for kind in ("wall_s", "process_s"):
        before, after = (min(t[kind][0] for t in times[fast]) for fast in (False, True))
        word = "wall" if kind == "wall_s" else "processor"
        parts.append(
            f"{word} {before * 1e3:.2f} -> {after * 1e3:.2f} ms a step ({before / after:.2f}x)"
        )
    return {"same": worst <= project.tolerance, "text": "; ".join(parts) + warned}


def install(package: Path, python: Path) -> None:
    """Install a package for the interpreter `python` by pip; without pip, unpack the package's
    wheel."""
    if not _run([sys.executable, "-m", "pip", "--version"]).returncode:
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
        done = _run([*command, "--no-index", "--force-reinstall", str(package)])
        if done.returncode:
            raise SystemExit(done.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch:
        code = f"import cuagent_build; print(cuagent_build.build_wheel({scratch!r}))"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=package, check=True, capture_output=True, text=True
        )
        with zipfile.ZipFile(Path(scratch, done.stdout.strip())) as wheel:
            wheel.extractall(_site(python.parents[1]))


def difference(before: Path, after: Path) -> float:
    """Return the largest difference of two saved results, divided by the root mean square of the
    first result."""
    import torch
    from torch.utils import _pytree as pytree

    worst = 0.0
    pairs = (pytree.tree_leaves(torch.load(file, map_location="cpu")) for file in (before, after))
    for one, other in zip(*pairs, strict=True):
        size = one.double().square().mean().sqrt().clamp_min(1e-30)
        worst = max(worst, float((one.double() - other.double()).abs().max() / size))
    return worst


def _run(command: list[Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
