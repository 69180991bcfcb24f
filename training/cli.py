"""Define the commands `cuagent train ...`, which call the stages. Heavy packages are imported when
a command runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from cuagent.training.session import choose_device, needs_extra, prepare, processes, say

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def train(context: typer.Context) -> None:
    """Turn runs into a better policy: RFT, value pretraining, PPO."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def folder_option(out: Path) -> Path:
    """Return `out`. Raises typer.BadParameter if it, or a parent of it, is a file."""
    nearest = next(path for path in (out, *out.parents) if path.exists())
    if not nearest.is_dir():
        raise typer.BadParameter(f"{nearest} is not a folder")
    return out


Out = Annotated[
    Path,
    typer.Option(
        "--out", metavar="DIR", help="Folder for checkpoints and metrics.", callback=folder_option
    ),
]
Policy = Annotated[
    Path,
    typer.Option(
        "--policy", metavar="DIR|NAME", help="Hugging Face folder of the policy, or OWNER/NAME."
    ),
]
Tasks = Annotated[
    Path,
    typer.Option(
        "--tasks", metavar="PATH", help="A task file, a folder of them, or FILE.parquet[:SPLIT]."
    ),
]
Sources = Annotated[
    list[Path],
    typer.Option(
        "--from",
        metavar="PATH",
        help="A folder of runs or of `train collect`, or a JSONL of episodes. Repeatable.",
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="One setting, e.g. ppo.iterations=40. Repeatable."
    ),
]
DeviceName = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where it runs.")
]


@app.command()
def demo(
    out: Out = Path(".cuagent/demo"),
    device: DeviceName = "auto",
    kernels: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda",
            help="auto: for the device that trains. cpu: C++. cuda: CUDA C++.",
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option(metavar="N", help="The first seed.")] = 0,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Number of seeds to train and compare, with an RFT arm."
        ),
    ] = 1,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="Limit of the wall time: PPO makes fewer iterations. Other stages run whole.",
        ),
    ] = None,
    ablation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An arm of docs/research/ablations.md; needs finished --seeds. Repeatable.",
        ),
    ] = None,
    config: Config = None,
    set: Sets = None,
) -> None:
    """Train a small decoder from scratch, with all stages.

    The stages are teacher, RFT, value pretraining and PPO; the verdicts are real.

    An interrupted run resumes where it stopped.
    """
    needs_extra()
    from cuagent.task import Device
    from cuagent.training.config import ConfigError, configure, overlay
    from cuagent.training.demo.ablation import run_ablations
    from cuagent.training.demo.demo import run_demo
    from cuagent.training.demo.presets import preset
    from cuagent.training.demo.trial import run_trial
    from cuagent.training.report import write_report

    where = choose_device(device)
    if kernels not in ("auto", *Device):
        raise ConfigError(f"--kernels {kernels}: there are auto, {', '.join(Device)}")
    target = Device(where if kernels == "auto" else choose_device(kernels))
    start = overlay(preset(where, target, 0), {"seed": seed, "minutes": minutes}, "")
    settings = configure(start, config, set or [])
    if ablation:
        run_ablations(ablation, settings, range(seed, seed + seeds), where, out, say)
        return
    if seeds > 1:
        run_trial(settings, range(seed, seed + seeds), where, out, say)
        return
    run_demo(settings, where, out, say)
    say(f"curves: {write_report(out)}")


Episodes = Annotated[
    int, typer.Option("--episodes", min=1, metavar="N", help="Number of episodes.")
]
PartName = Annotated[
    str,
    typer.Option(
        "--part", metavar="train|heldout|all", help="Tasks to play; heldout: by task hash."
    ),
]


@app.command()
def collect(
    policy: Policy,
    tasks: Tasks,
    out: Out,
    episodes: Episodes = 256,
    part: PartName = "train",
    device: DeviceName = "auto",
    config: Config = None,
    set: Sets = None,
) -> None:
    """Play training tasks with a policy; save the episodes.

    They serve RFT and value pretraining.
    """
    run_collect(policy, tasks, out, episodes, device, config, set, part)


@app.command()
def evaluate(
    policy: Policy,
    tasks: Tasks,
    out: Out,
    episodes: Episodes = 64,
    part: PartName = "heldout",
    device: DeviceName = "auto",
    config: Config = None,
    set: Sets = None,
) -> None:
    """Play held-out tasks with a policy; save the metrics.

    They are written to evaluation.json.
    """
    run_collect(policy, tasks, out, episodes, device, config, set, part)


def run_collect(
    policy: Path,
    tasks: Path,
    out: Path,
    episodes: int,
    device: str,
    config: Path | None,
    set: list[str] | None,
    part: str,
) -> None:
    """Play episodes on the tasks of `part`; the common code of the commands `collect` and
    `evaluate`."""
    settings = prepare(config, set)
    from cuagent.training.config import ConfigError
    from cuagent.training.data.tasks import Part
    from cuagent.training.stages import collect

    if part not in list(Part):
        raise ConfigError(f"--part {part}: there are {', '.join(Part)}")
    with processes(device) as here:
        collect(policy, tasks, out, episodes, settings, here, say, Part(part))


@app.command()
def rft(
    policy: Policy,
    source: Sources,
    out: Out,
    device: DeviceName = "auto",
    config: Config = None,
    set: Sets = None,
) -> None:
    """Run rejection fine-tuning on runs or episodes.

    Runs are those of `cuagent optimize` with any provider.
    """
    settings = prepare(config, set)
    from cuagent.training.stages import run_rft

    with processes(device) as here:
        run_rft(policy, source, out, settings, here, say)


@app.command()
def value(
    policy: Policy,
    source: Sources,
    out: Out,
    device: DeviceName = "auto",
    config: Config = None,
    set: Sets = None,
) -> None:
    """Pretrain the critic on unfiltered episodes."""
    settings = prepare(config, set)
    from cuagent.training.stages import run_value

    with processes(device) as here:
        run_value(policy, source, out, settings, here, say)


@app.command()
def ppo(
    policy: Policy,
    tasks: Tasks,
    out: Out,
    critic: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of a critic from `train value`.")
    ] = None,
    device: DeviceName = "auto",
    config: Config = None,
    set: Sets = None,
) -> None:
    """Run PPO on a policy against the real verifier.

    The same command resumes an interrupted run.
    """
    settings = prepare(config, set)
    from cuagent.training.report import write_report
    from cuagent.training.stages import run_ppo

    with processes(device) as here:
        run_ppo(policy, critic, tasks, out, settings, here, say)
    say(f"curves: {write_report(out)}")


@app.command()
def pipeline(
    file: Annotated[Path, typer.Argument(help="TOML file with policy, tasks, out and settings.")],
    device: DeviceName = "auto",
    set: Sets = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as TOML, and end.")
    ] = False,
) -> None:
    """Run every stage as one command that resumes.

    The stages are collection, RFT, value pretraining, PPO and evaluations.
    """
    needs_extra()
    from cuagent.training.config import configure, to_toml
    from cuagent.training.pipeline import PipelineConfig, run_pipeline

    settings = configure(PipelineConfig(policy="?"), file, set or [])
    if print_config:
        typer.echo(to_toml(settings), nl=False)
        return
    if settings.policy == "?":
        from cuagent.training.config import ConfigError

        raise ConfigError(f"{file}: name the policy, as in policy = 'OWNER/NAME'")
    with processes(device) as here:
        run_pipeline(settings, here, say)


@app.command()
def export(
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Folder of runs.")],
    out: Annotated[
        Path, typer.Option(metavar="PATH", help="File (chat, parquet) or folder (atif).")
    ],
    form: Annotated[
        str, typer.Option("--format", metavar="chat|atif|parquet", help="The form.")
    ] = "chat",
    policy: Annotated[
        Path | None, typer.Option(metavar="DIR|NAME", help="Policy whose tokenizer parquet needs.")
    ] = None,
) -> None:
    """Write runs in the formats of other trainers."""
    from cuagent.training.config import ConfigError
    from cuagent.training.data.sources import export as write
    from cuagent.training.settings import Export

    if form not in list(Export):
        raise ConfigError(f"--format {form}: there are {', '.join(Export)}")
    say(f"{write(runs, Export(form), out, policy, say)} written to {out}")


@app.command(name="export-verl")
def export_verl(
    policy: Policy,
    critic: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of a critic from `train value`.")
    ],
    tasks: Tasks,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder shared by all nodes.", callback=folder_option),
    ],
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Number of nodes.")] = 1,
    gpus: Annotated[
        int, typer.Option(min=1, metavar="N", help="GPUs per node for training and sampling.")
    ] = 6,
    judges: Annotated[
        int, typer.Option(min=1, metavar="N", help="GPUs of the cluster that only time kernels.")
    ] = 2,
    device: Annotated[
        str, typer.Option(metavar="cuda|cpu", help="Device of the kernels.")
    ] = "cuda",
    config: Config = None,
    set: Sets = None,
) -> None:
    """Write a folder from which verl trains.

    It holds models, tasks, plug-in and launch script.
    """
    settings = prepare(config, set)
    from cuagent.task import Device
    from cuagent.training.config import ConfigError
    from cuagent.training.engines.verl_export import Cluster, export_verl

    if device not in list(Device):  # the cluster may have devices that this machine lacks
        raise ConfigError(f"--device {device}: there are {', '.join(Device)}")
    cluster = Cluster(nodes, gpus, judges)
    count = export_verl(policy, critic, tasks, out, settings, cluster, device)
    if settings.curriculum:
        say("verl plays all tasks equally often: it has no curriculum")
    say(f"{count} tasks; start with {out}/run.sh")


@app.command()
def doctor(
    policy: Annotated[
        Path | None,
        typer.Option(metavar="DIR|NAME", help="Also check that this policy can be trained."),
    ] = None,
) -> None:
    """Report installed and missing packages and devices."""
    from cuagent.training.doctor import examine

    for line in examine(policy):
        say(line)


if __name__ == "__main__":  # torchrun -m cuagent.training.cli ppo ...
    # Run `cuagent train ppo ...` for its exit codes; by name, since cuagent.cli is a higher layer.
    sys.argv.insert(1, "train")
    runpy.run_module("cuagent", run_name="__main__")
