"""`cuagent bench`: measure cuagent on many tasks, and compare two such measurements."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuagent.cli import options
from cuagent.cli.child import ask_child
from cuagent.cli.exits import Exit, Refused, print_stderr
from cuagent.cli.trust import resolve_settings

if TYPE_CHECKING:
    from cuagent.bench.engines import Engine
    from cuagent.bench.order import BenchSettings
    from cuagent.bench.problems import Problem
    from cuagent.bench.scheduler import Slots
    from cuagent.config import Settings

KERNELBENCH, COMPARE = "kernelbench", "compare"
MAX_TIME_S = 900.0
"""Default time limit in seconds for one problem."""


@dataclass(frozen=True)
class Skips:
    """Earlier results that count, so that their problems are skipped."""

    resume: bool
    """False to do all problems again."""
    any_version: bool
    """True to skip also problems with a result of another version of cuagent."""
    trust: bool
    """True to skip also problems with a result of another user or machine."""


def bench(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="kernelbench|FOLDER|FILE.parquet|compare A B",
            help="Problems: a KernelBench checkout (--root), a folder of tasks, a parquet file "
            "with a column `code`; or two earlier results to compare.",
        ),
    ],
    root: Annotated[Path | None, typer.Option(metavar="DIR", help="KernelBench checkout.")] = None,
    levels: Annotated[str, typer.Option(metavar="1,2,3", help="Levels of KernelBench.")] = "1,2,3",
    problems: Annotated[
        str, typer.Option(metavar="LIST", help="Only these: 1-10,23 or 2/80; names in a folder.")
    ] = "",
    model: options.Model = None,
    rules: Annotated[
        str,
        typer.Option(
            metavar="practical|kernels-only",
            help="kernels-only: no torch operator computes but products and convolutions.",
        ),
    ] = "practical",
    device: options.Device = None,
    precision: options.Precision = None,
    gpus: Annotated[int, typer.Option(min=1, metavar="N", help="GPUs to use.")] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Problems in flight; 1 on a CPU, some for each GPU by default."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Where the problems run.")
    ] = "local",
    max_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Wall time of one problem.  [default: 15m]"),
    ] = None,
    max_steps: options.MaxSteps = None,
    max_cost: options.MaxCost = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Results, logs, page; an earlier one is resumed.  [default: .cuagent/bench/NAME]",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--again", help="Skip problems with a valid result in --out (default)."
        ),
    ] = True,
    any_version: Annotated[
        bool,
        typer.Option(
            "--any-version", help="Also skip problems with a result of another version of cuagent."
        ),
    ] = False,
    trust: options.Trust = False,
) -> None:
    """Optimize many tasks, and score them by three rules.

    Results are appended to OUT/results.jsonl as they come. The same command resumes after an
    interrupt; a problem is done again if its file, cuagent, the device or a setting has changed.

    Exit code 0 if every problem has a result or a reason; 2 usage; 3 infrastructure;
    130 interrupted.
    """
    if sources[0] == COMPARE:
        _compare(sources[1:])
        return
    if len(sources) != 1:
        raise Refused(f"one source at a time, not {' '.join(sources)}; see cuagent bench --help")
    folder = out or Path(".cuagent", "bench", _name_of(sources[0]))
    found = _problems(sources[0], root, levels, problems, folder)
    if engine not in ("local", "ray"):
        raise Refused(f"--engine {engine}: use local or ray")
    flags = {"model": model, "device": device, "precision": precision}
    limits = {"max_steps": max_steps, "max_cost": max_cost, "max_time": max_time}
    settings = resolve_settings(flags | limits, trust)
    wanted = _bench_settings(settings, rules)
    placed = (engine, gpus, jobs)
    skips = Skips(resume, any_version, trust)
    _run(found, wanted, settings, folder, placed, skips)


def _name_of(source: str) -> str:
    return source if source == KERNELBENCH else Path(source).resolve().stem


def _problems(source: str, root: Path | None, levels: str, wanted: str, out: Path) -> list[Problem]:
    """Return the problems of a source (`kernelbench`, a folder or a parquet file).

    `wanted` is the text of `--problems`. Raises BenchError and Refused.
    """
    from cuagent.bench import problems

    if source == KERNELBENCH:
        if root is None:
            raise Refused(
                "--root is missing: give the folder of a checkout of "
                "https://github.com/ScalingIntelligence/KernelBench"
            )
        return problems.kernelbench(root, _levels(levels), wanted)
    path = Path(source)
    if path.is_dir():
        return problems.folder_of_tasks(path, wanted)
    if path.suffix == ".parquet" and path.is_file():
        return problems.parquet(path, out, wanted)
    raise Refused(f"{source}: no folder and no parquet file; see cuagent bench --help")


def _levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise Refused(f"--levels {text}: write numbers, as in 1,2,3") from error


def _bench_settings(settings: Settings, rules: str) -> BenchSettings:
    from cuagent.bench.order import BenchSettings, Rules
    from cuagent.models import default_model
    from cuagent.task.load import cuda_here

    try:
        chosen = Rules(rules)
    except ValueError as error:
        raise Refused(f"--rules {rules}: use {' or '.join(Rules)}") from error
    device = settings.device
    if device == "auto":
        device = "cuda" if cuda_here() else "cpu"
    given = settings.origins["max_time"] != "default"
    return BenchSettings(
        model=default_model() if settings.model == "auto" else settings.model,
        rules=chosen,
        device=device,
        precision=settings.precision,
        isolation=settings.isolation,
        max_steps=settings.max_steps,
        max_cost=settings.max_cost,
        max_time_s=settings.max_time if given else MAX_TIME_S,
    )


def _run(
    problems: list[Problem],
    wanted: BenchSettings,
    settings: Settings,
    out: Path,
    placed: tuple[str, int, int | None],
    skips: Skips,
) -> None:
    from cuagent.bench.page import write_page
    from cuagent.bench.results import PAGE, latest, opened_for_writing, outdated
    from cuagent.bench.scheduler import orders_for, run_orders
    from cuagent.ui.bench import BenchView, print_results

    _require_all_parts()
    names = {problem.name for problem in problems}
    with opened_for_writing(out, trust=skips.trust) as results:
        if results.foreign and skips.resume:
            print_stderr(
                f"{results.path}: {results.foreign} results of unknown origin do not count: "
                "cuagent did not write them for you on this machine; --trust accepts them"
            )
        if skips.resume and (count := outdated(out)):
            print_stderr(
                f"{results.path}: results in another version of cuagent's format do not count "
                f"({count}); their problems run again"
            )
        where = _device_name(wanted.device, placed)
        engine, slots = _engine(placed, wanted.device, out)
        given = dict(settings.endpoints), dict(settings.prices)
        versions = results.versions if skips.any_version else ()
        orders = orders_for(problems, wanted, where, out, *given, versions)
        if not skips.resume:
            results.set_aside()
        view = BenchView(sys.stdout, len(orders))
        try:
            with engine, view:
                run_orders(orders, engine, slots, results, view.observe)
        except KeyboardInterrupt:
            print_stderr(
                f"interrupted: {view.interrupted()}; the same command resumes; results are in {out}"
            )
            raise typer.Exit(Exit.INTERRUPTED) from None
        finally:
            shown = [r for r in latest(results.records) if r["problem"] in names]
            write_page(shown, out / PAGE)
        print_results(shown, sys.stdout)
        print(f"results: {results.path}\npage: {out / PAGE}")


def _require_all_parts() -> None:
    """Raise Refused if the installed package has no skill folder, because every problem would fail.

    The folder exists only where cuagent is installed.
    """
    from cuagent.agent.prompt import skill

    try:
        skill()
    except ModuleNotFoundError as error:
        raise Refused(f"{error}: install cuagent; in a checkout: pip install -e .") from error


def _engine(placed: tuple[str, int, int | None], device: str, out: Path) -> tuple[Engine, Slots]:
    from cuagent.bench.engines import LocalEngine, RayEngine
    from cuagent.bench.scheduler import CORES_PER_JOB, JOBS_PER_GPU, Slots, slots_for

    name, gpus, jobs = placed
    on_gpu = device == "cuda"
    if name == "local":
        return LocalEngine(out / "logs", on_gpu=on_gpu), slots_for(device, jobs, gpus)
    ray = RayEngine(out / "logs", JOBS_PER_GPU, on_gpu, CORES_PER_JOB if on_gpu else 1)
    return ray, Slots((None,) * (jobs or ray.slots))


def _device_name(device: str, placed: tuple[str, int, int | None]) -> str:
    """Return the name of the device, found in a separate process. It is part of a result's key.

    Raises Refused if there are fewer GPUs than asked for.
    """
    engine, gpus, _ = placed
    if engine == "ray":
        return f"ray {device}"
    imports = "import torch; from cuagent.measure.roofline.ceilings import describe"
    name, count = ask_child(
        f"{imports}; from cuagent.task import Device",
        f"describe(Device({device!r})), torch.cuda.device_count()",
        f"--device {device}: cannot be used",
    )
    if device == "cuda" and gpus > count:
        raise Refused(f"--gpus {gpus}: torch sees {count} here")
    return str(name)


def _compare(paths: list[str]) -> None:
    from cuagent.bench.compare import compare
    from cuagent.bench.results import outdated, read_results
    from cuagent.ui.bench import print_comparison

    if len(paths) != 2:
        raise Refused("compare takes two results: cuagent bench compare A B")
    both: list[list[dict[str, Any]]] = [read_results(Path(path)) for path in paths]
    for path, records in zip(paths, both, strict=True):
        if not records and (count := outdated(Path(path))):
            raise Refused(
                f"{path}: its results ({count}) are in another version of cuagent's format; "
                "run the benchmark again"
            )
        if not records:
            raise Refused(f"{path}: no results; give a folder with results.jsonl or such a file")
    print_comparison(compare(*both), sys.stdout)
