"""Run the whole method on a user's policy and tasks: `cuagent train pipeline run.toml`.

    collect ─▶ RFT ─▶ collect ─▶ value ─▶ PPO, with an evaluation on held-out tasks of the start,
    of RFT and of PPO

Every stage has a folder under `out`. A finished stage is skipped, so a repeated command continues
where the last one stopped. One file has the settings of all commands.
Not covered: the stages themselves (`stages.py`); several seeds.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

from cuagent.training import parallel
from cuagent.training.algorithms.metrics import Metrics
from cuagent.training.config import at_least
from cuagent.training.data.segments import read_episodes
from cuagent.training.data.tasks import Part, load_tasks, split_tasks
from cuagent.training.report import write_pipeline_report
from cuagent.training.settings import TrainConfig
from cuagent.training.stages import Say, collect, run_ppo, run_rft, run_value

EPISODES = Path("episodes", "00000.jsonl")
"""Path of the episodes file, relative to the folder of a collection."""


@dataclass(frozen=True)
class PipelineConfig(TrainConfig):
    """Settings of `cuagent train pipeline`: those of all stages, the policy, the tasks and the
    folder of results."""

    policy: str = ""
    """Hugging Face folder or name of the policy to start from."""
    tasks: str = "tasks"
    """Folder of task files. The share `heldout` of them is kept for evaluations and never trained
    on."""
    out: str = "run"
    """Folder of all results."""
    runs: tuple[str, ...] = ()
    """Folders of runs of `cuagent optimize`; RFT imitates these runs too."""
    collect_episodes: int = 1024
    """Number of episodes that the initial policy plays for RFT; 0: RFT imitates `runs` only."""
    value_episodes: int = 1024
    """Number of episodes that the policy after RFT plays to pretrain the critic."""
    evaluation_episodes: int = 64
    """Number of episodes per evaluation on held-out tasks; 0: no evaluations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "collect_episodes", "evaluation_episodes")
        at_least(1, self, "value_episodes")
        if not self.policy:
            raise ValueError("policy: name a Hugging Face folder, or OWNER/NAME")
        if not self.collect_episodes and not self.runs:
            raise ValueError("collect_episodes: 0 needs folders in `runs`")


def run_pipeline(config: PipelineConfig, device: str, say: Say) -> dict[str, Metrics]:
    """Run the stages that are not finished; return the metrics on held-out tasks by stage."""
    out, tasks, start = Path(config.out), Path(config.tasks), Path(config.policy)
    judged = bool(config.evaluation_episodes)
    if judged and not split_tasks(load_tasks(tasks, device), config.heldout)[1]:
        say(
            f"no task of {tasks} is held out (heldout={config.heldout}): nothing is evaluated; "
            "for evaluations add tasks or raise heldout"
        )
        judged = False
    found: dict[str, Metrics] = {}

    def play(policy: Path, name: str, episodes: int, part: Part) -> Path:
        say(f"{name}: {episodes} episodes")
        found[name] = collect(policy, tasks, out / name, episodes, config, device, say, part)
        release()
        return out / name / EPISODES

    def evaluate(policy: Path, name: str) -> None:
        if judged:
            play(policy, f"{name}-heldout", config.evaluation_episodes, Part.HELDOUT)

    evaluate(start, "start")
    sources = [Path(folder) for folder in config.runs]
    if config.collect_episodes:
        sources.append(play(start, "collected", config.collect_episodes, Part.TRAIN))
    say("rft")
    run_rft(start, sources, out / "rft", config, device, say)
    release()
    tuned = out / "rft" / "model"
    evaluate(tuned, "rft")
    played = play(tuned, "played", config.value_episodes, Part.TRAIN)
    say("value")
    run_value(tuned, [played], out / "value", config, device, say)
    release()
    say("ppo")
    run_ppo(tuned, out / "value" / "model", tasks, out / "ppo", config, device, say)
    release()
    evaluate(out / "ppo" / "model", "ppo")
    heldout = {name: m for name, m in found.items() if name.endswith("-heldout")}
    if parallel.rank() == 0:
        last = out / "ppo-heldout" / EPISODES
        episodes = list(read_episodes(last)) if judged else []
        say(f"report: {write_pipeline_report(out, heldout, episodes)}")
    return heldout


def release() -> None:
    """Free the memory of a stage's models before the next stage loads its own."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
