"""`cuagent synth`: make new tasks, audit a file of tasks, and grade tasks with measured gains."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuagent.cli import options
from cuagent.cli.child import ask_child
from cuagent.cli.exits import Exit, Refused, print_stderr

if TYPE_CHECKING:
    from cuagent.synth.compose import Grammar
    from cuagent.synth.run import Compose, Settings

app = typer.Typer(
    help="Make new, verified tasks; audit and grade files of tasks.", rich_markup_mode=None
)
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Device of the tasks.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Tasks in flight; one for each processor.")
]
KernelBench = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="KernelBench checkout; tasks like its problems are rejected."),
]
Compile = Annotated[bool, typer.Option("--compile/--no-compile", help="Check under torch.compile.")]


@app.callback(invoke_without_command=True)
def synth(
    context: typer.Context,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Tasks to make.")] = 300,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the set.")] = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(metavar="S", help="The same seed gives the same set.")] = 0,
    compose: Annotated[
        str, typer.Option(metavar="grammar|model", help="What composes the operators.")
    ] = "grammar",
    model: options.Model = None,
    gpus: Annotated[int, typer.Option(min=1, metavar="N", help="GPUs to use.")] = 1,
    jobs: Jobs = None,
    operators: Annotated[
        str, typer.Option(metavar="N:W,...", help="Weight of each number of operators.")
    ] = "",
    families: Annotated[
        str, typer.Option(metavar="NAME:W,...", help="Weights of families; 0 leaves one out.")
    ] = "",
    kernelbench: KernelBench = None,
    compile: Compile = True,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
) -> None:
    """Compose tasks, keep those that pass every check, and write OUT/tasks.parquet and its card.

    Exit code 0; 1 if fewer tasks than asked for passed; 2 usage; 3 infrastructure;
    130 interrupted: the same command with --resume continues.
    """
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise Refused("--out is missing: name the folder of the set")
    from cuagent.synth.run import Settings

    here = _device(device)
    settings = Settings(
        count,
        seed,
        here,
        compose if compose == "grammar" else f"model {model or ''}".strip(),
        _grammar(operators, families, here),
        str(kernelbench.resolve()) if kernelbench else "",
        compile,
    )
    composer = None
    if compose == "model":
        composer = _model_composer(settings, model, out)
    elif compose != "grammar":
        raise Refused(f"--compose {compose}: use grammar or model")
    _make(settings, out, resume, jobs, gpus, composer)


def _make(
    settings: Settings,
    out: Path,
    resume: bool,
    jobs: int | None,
    gpus: int,
    composer: Compose | None,
) -> None:
    from cuagent.bench.scheduler import visible_gpu
    from cuagent.synth.dataset import parquet_library
    from cuagent.synth.finish import FILE, write_outputs
    from cuagent.synth.run import synthesize
    from cuagent.synth.workers import default_jobs

    parquet_library(out / FILE)  # a missing library is reported before the work, not after it
    places = [visible_gpu(n) for n in range(gpus)] if settings.device == "cuda" else [None]
    jobs = jobs or default_jobs(settings.device, gpus)
    try:
        accepted = synthesize(
            settings, out, resume, jobs, _progress(settings.count), places, composer
        )
    except KeyboardInterrupt:
        print_stderr(f"interrupted; --resume continues with what is in {out}")
        gc.freeze()  # else Python examines all objects of torch at its end: half a second
        raise typer.Exit(Exit.INTERRUPTED) from None
    name, rates = _device_facts(settings.device)
    path = write_outputs(settings, out, accepted, rates, name)
    print(f"{len(accepted)} tasks: {path}\ncard: {out / 'card.html'}")
    if len(accepted) < settings.count:
        print_stderr(f"only {len(accepted)} of {settings.count} tasks passed; give another --seed")
        raise typer.Exit(Exit.NO)


def _progress(count: int) -> Any:
    import time

    shown = [time.monotonic()]

    def observe(accepted: int, examined: int, record: dict[str, Any]) -> None:
        if time.monotonic() - shown[0] > 5:
            shown[0] = time.monotonic()
            print_stderr(f"{min(accepted, count)} of {count} accepted, {examined} examined")

    return observe


@app.command()
def read(
    file: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="A file with `code`.")],
    run: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Rows to run, from the first; they run with your rights."
        ),
    ] = 0,
    device: Device = "auto",
    jobs: Jobs = None,
    compile: Compile = False,
    check: Annotated[
        bool, typer.Option("--check", help="Also apply `cuagent check` to the rows that run.")
    ] = False,
    kernelbench: KernelBench = None,
    json: options.Json = False,
) -> None:
    """Audit a file of tasks with the checks of new tasks.

    Files of `cuagent synth` and CUDA-Agent-Ops-6K have the needed columns.

    Exit code 0 if nothing was found, 1 if something was, 2 usage.
    """
    if not file.is_file():
        raise Refused(f"{file}: no such file")
    from cuagent.synth.audit import audit
    from cuagent.synth.workers import default_jobs

    here = _device(device)
    where = str(kernelbench) if kernelbench else ""
    found = audit(file, run, here, jobs or default_jobs(here, 1), compile, where, check)
    if json:
        from json import dumps

        print(dumps(found.to_json(), indent=1))
    else:
        _print_audit(found)
    raise typer.Exit(Exit.NO if found.faults else Exit.OK)


def _print_audit(found: Any) -> None:
    from cuagent.synth.audit import SHOWN

    facts = found.to_json()
    print(f"{found.rows} rows, {found.run} run")
    shares = ", ".join(f"{n}: {rows}" for n, rows in facts["rows_by_operators"].items())
    print(f"rows by number of operators: {shares}")
    print(
        f"{facts['different_operators']} different operators, "
        f"entropy {facts['operator_entropy_bits']:.2f} bits"
    )
    for name, rows in found.faults.items():
        print(f"{name}: {len(rows)} rows")
        for row in rows[:SHOWN]:
            print(f"  row {row}: {found.details.get((name, row), '')}")
    if not found.faults:
        print("no fault found")


@app.command()
def grade(
    file: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="A set of `synth`.")],
    bench: Annotated[
        Path, typer.Option("--bench", metavar="DIR", help="Results of `cuagent bench FILE`.")
    ],
) -> None:
    """Grade a set again by the gains that bench measured."""
    from cuagent.bench.results import latest, read_results
    from cuagent.synth.dataset import about_of, read_set, write_set
    from cuagent.synth.grade import with_bench

    records = {record["problem"]: record for record in latest(read_results(bench))}
    if not records:
        raise Refused(f"{bench}: no results; run cuagent bench {file} --out {bench}")
    about = about_of(file)
    rows = list(read_set(file))
    if not rows or "grade" not in rows[0]:
        raise Refused(f"{file}: is not a set of cuagent synth")
    graded = [
        with_bench(row, records[f"row {n}"]) if f"row {n}" in records else row
        for n, row in enumerate(rows)
    ]
    write_set(graded, file, about)
    print(f"{sum(f'row {n}' in records for n in range(len(rows)))} of {len(rows)} rows graded")


def _device(given: str) -> str:
    from cuagent.task.load import cuda_here

    if given == "auto":
        return "cuda" if cuda_here() else "cpu"
    if given not in ("cpu", "cuda"):
        raise Refused(f"--device {given}: use auto, cpu or cuda")
    return given


def _device_facts(device: str) -> tuple[str, tuple[float, float]]:
    """Return (device name, (bytes per second, FLOP per second)), measured in a separate process."""
    imports = "from cuagent.measure.roofline.ceilings import ceilings"
    name, copy, flops = ask_child(
        f"{imports}; from cuagent.task import Device; c = ceilings(Device({device!r}))",
        "c.device, c.copy, c.fp32",
        f"--device {device}: its rates cannot be measured",
    )
    return name, (copy, flops)


def _grammar(operators: str, families: str, device: str) -> Grammar:
    from cuagent.synth.catalogue import FAMILIES
    from cuagent.synth.compose import COUNTS, Grammar

    counts = _weights(operators, "--operators")
    chosen = _weights(families, "--families")
    if unknown := sorted(set(chosen) - set(FAMILIES)):
        raise Refused(f"--families {unknown[0]}: unknown; use {', '.join(FAMILIES)}")
    if bad := [name for name in counts if not name.isdigit() or name == "0"]:
        raise Refused(f"--operators {bad[0]}: write numbers, as in 1:0.2,2:0.5,3:0.3")
    if (counts and not any(counts.values())) or not any((FAMILIES | chosen).values()):
        raise Refused("a weight of --operators and one of --families must be above 0")
    return Grammar(
        counts={int(n): weight for n, weight in counts.items()} or COUNTS,
        families=FAMILIES | chosen,
        sizes="large" if device == "cuda" else "small",
    )


def _weights(text: str, option: str) -> dict[str, float]:
    found = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, weight = part.partition(":")
        try:
            found[name.strip()] = float(weight)
        except ValueError as error:
            raise Refused(f"{option} {part}: write NAME:WEIGHT") from error
        if not 0 <= found[name.strip()] < math.inf:
            raise Refused(f"{option} {part}: a weight is a finite number of at least 0")
    return found


def _model_composer(settings: Settings, model: str | None, out: Path) -> Compose:
    from cuagent.cli.trust import resolve_settings
    from cuagent.models import make_model
    from cuagent.synth.language_model import ModelComposer

    resolved = resolve_settings({"model": model}, False)
    if resolved.model in ("auto", "expert"):
        raise Refused("--compose model: name a language model with --model PROVIDER:NAME")
    asked = make_model(resolved.model, endpoints=resolved.endpoints, prices=resolved.prices)
    return ModelComposer(asked, settings.seed, settings.grammar, out)
