r"""Play and train models in the shape of real ones: random weights, the real prompt and tools.

    python benchmarks/train_shapes.py --shape tiny --stages probe,sample,agree,rft,value,ppo   # CPU
    python benchmarks/train_shapes.py --shape qwen-1.5b --stages probe --out run
    python benchmarks/train_shapes.py --shape qwen-1.5b --stages sample,agree --out run
    python benchmarks/train_shapes.py --shape qwen-1.5b --stages rft,value,ppo --out run
    python benchmarks/train_shapes.py --shape qwen-7b-lora --stages probe,sample,agree \
        --seconds 240 --cache-tokens 1048576 --out run-7b

Each stage can run alone; its figures go to `OUT/figures.json`, one entry for each stage.

- `probe` measures reading of prompts and decoding, without episodes, and names the attention used.
- `sample` plays episodes through a `Collector`, as `cuagent train collect` does: the agent's loop,
  prompt and tools, untimed verdicts. A turn has tokens that the policy samples (their number is set
  by `--seconds`), then a tool call that is dictated, because random weights write none. The output
  of the tools fills the context. An interrupted stage continues with the missing episodes.
  After `probe` it plays fewer episodes if the time does not allow all.
- `agree` scores these episodes with the trainer and compares log-probabilities with the sampler's.
- `rft`, `value` and `ppo` make updates as the stages do; without episodes of `sample` they use
  random ids with the same segments. A step that would pass `--seconds` is not begun.

Not covered: learning (weights and sampled text are random), timed verdicts, several GPUs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from train_shapes_models import FAMILIES, SHAPES, Shape, decoder, random_episodes, with_room
from train_shapes_play import DICTATED, MOST_REPLY, Scripted, make_chat, task_folder

from cuagent.agent.prompt import opening
from cuagent.agent.tools import TOOLS
from cuagent.training.algorithms.metrics import episode_metrics
from cuagent.training.algorithms.ppo_update import PpoConfig, update
from cuagent.training.algorithms.rft import RftConfig, rft_step
from cuagent.training.algorithms.value import value_step
from cuagent.training.data.batch import collate
from cuagent.training.data.segments import Episode, Kind, read_episodes
from cuagent.training.data.tasks import load_tasks
from cuagent.training.engines.cached import CachedEngine
from cuagent.training.engines.engine import Request
from cuagent.training.files import write_atomic
from cuagent.training.policy.folder import prepare_model
from cuagent.training.policy.lora import Lora, adapt, share_backbone
from cuagent.training.policy.model import (
    count_parameters,
    logprobs_of,
    new_critic,
    per_token,
    positions_of,
)
from cuagent.training.policy.optimize import AdamW, apply_gradients, make_optimizer
from cuagent.training.policy.placement import Dtype, Placement
from cuagent.training.rollout.setup import make_collector, make_engine, make_pool
from cuagent.training.settings import PlayConfig, Sampler, TrainConfig

Figures = dict[str, Any]
RATES = AdamW(lr=1e-6)
JUDGING_S = 25
"""Seconds reserved for opening and judging the tasks."""
AGREE_SHARE = 0.2
"""Share of the time limit for comparing log-probabilities."""
REREAD = 1.4
"""Tokens that the engine computes, per token of an episode (measured: 1.32)."""
TOOLS_S = 3.5
"""Seconds of a turn for tools and decoding (measured: 3.3 for the tools of 64 conversations)."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--family", choices=FAMILIES, default="qwen2")
    parser.add_argument("--stages", default="probe,sample,agree,rft,value,ppo")
    parser.add_argument("--seconds", type=float, default=480, help="limit of the whole call")
    parser.add_argument("--episodes", type=int, help="episodes to play (default: of the shape)")
    parser.add_argument("--at-once", type=int, help="episodes in parallel (default: all that fit)")
    parser.add_argument(
        "--cache-tokens", type=int, help="size of the cache for sampling, in tokens"
    )
    parser.add_argument(
        "--reply", type=int, help="sampled tokens of a turn (default: by --seconds)"
    )
    parser.add_argument("--batch", type=int, help="episodes of a step (default: of the shape)")
    parser.add_argument("--ppo-episodes", type=int, default=16, help="episodes of the PPO update")
    parser.add_argument("--out", type=Path, default=Path("train-shapes"))
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    bench = Bench(options, end)
    stages = options.stages.split(",")
    for number, stage in enumerate(stages, 1):
        bench.later = len(stages) - number
        bench.record(stage, STAGES[stage])


class Bench:
    """The model and the settings of one call of the program, which its stages share."""

    def __init__(self, options: argparse.Namespace, end: float) -> None:
        self.options = options
        self.end = end
        self.later = 0
        """Number of stages that follow the running one."""
        self.shape = SHAPES[options.shape]
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.out: Path = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.config = config_of(self.shape, options, self.device)
        start = time.monotonic()
        self.chat = make_chat(self.shape.vocabulary)
        plain = decoder(self.shape, options.family, self.chat, self.config.dtype, self.device)
        self.weights = count_parameters(plain)
        # The critic begins as a copy of the backbone; adapters share the backbone afterwards.
        self.plain_critic = new_critic(plain) if wants_critic(options.stages) else None
        self.actor = prepare_model(plain, self.config, self.device).eval()
        self.config = with_room(self.config, self.actor)
        print(f"model of {self.weights / 1e9:.3f}e9 weights in {time.monotonic() - start:.0f} s",
              flush=True)  # fmt: skip

    def left(self) -> float:
        return self.end - time.monotonic()

    def record(self, stage: str, run: Callable[[Bench], Figures]) -> None:
        """Run a stage and add its figures to the file."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = time.monotonic()
        figures = run(self)
        figures["stage_seconds"] = round(time.monotonic() - start, 1)
        if self.device == "cuda":
            figures["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        self.write(stage, figures | self.facts())
        print(stage, json.dumps(figures), flush=True)

    def write(self, stage: str, figures: Figures | None) -> None:
        """Write the figures of a stage to the file; `figures` None removes them."""
        found = {name: f for name, f in self.found().items() if name != stage}
        if figures is not None:
            found[stage] = figures
        write_atomic(self.out / "figures.json", json.dumps(found, indent=1) + "\n")

    def found(self) -> Figures:
        """Return the figures of the finished stages, by stage, from the file."""
        path = self.out / "figures.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def facts(self) -> Figures:
        import transformers

        return {
            "shape": self.options.shape,
            "family": self.options.family,
            "weights": self.weights,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    @cached_property
    def critic(self) -> Any:
        """The critic, ready for training; with adapters it shares the actor's backbone."""
        if self.plain_critic is None:
            raise SystemExit("value and ppo must be among --stages when the script starts")
        critic = adapt(self.plain_critic, self.config.lora)
        if self.shape.rank:
            share_backbone(critic, self.actor)
        return prepare_model(critic, self.config, self.device)

    def episodes(self) -> tuple[list[Episode], str]:
        """Return (episodes, source): the episodes of the stage `sample` and "played", or else
        random episodes and "random ids"."""
        path = self.out / "episodes" / "00000.jsonl"
        if path.exists():
            return list(read_episodes(path)), "played"
        return random_episodes(self.shape, self.config.play.context), "random ids"


def wants_critic(stages: str) -> bool:
    return bool({"value", "ppo"} & set(stages.split(",")))


def config_of(shape: Shape, options: argparse.Namespace, device: str) -> TrainConfig:
    """Return the training settings for this model size, with untimed verdicts."""
    low = Dtype.BF16 if device == "cuda" else Dtype.FP32
    play = PlayConfig(
        turns=shape.turns,
        context=shape.context,
        reply=MOST_REPLY + 512,
        timed=False,
        at_once=options.at_once or options.episodes or shape.episodes,
        cache_tokens=options.cache_tokens,
        engine=Sampler.CACHED,
    )
    return TrainConfig(
        dtype=low if shape.rank else Dtype.FP32,
        placement=Placement(compute=low, recompute=True),
        lora=Lora(rank=shape.rank, shared=bool(shape.rank)),
        play=play,
    )


def probe(bench: Bench) -> Figures:
    """Measure the speed of reading prompts and of decoding with half-full contexts."""
    shape, play = bench.shape, bench.config.play
    engine = make_engine(bench.actor, bench.chat, play.at_once, bench.config)
    assert isinstance(engine, CachedEngine)
    engine.end = -1  # no turn ends early
    rows = min(play.at_once, engine.conversations() or play.at_once)
    length, steps = shape.context // 2, 32
    generator = torch.Generator().manual_seed(1)
    prompts = [
        tuple(torch.randint(3, shape.vocabulary, (length,), generator=generator).tolist())
        for _ in range(rows)
    ]
    with engine.open():
        # Warm up, and record the decoding pass of this many rows.
        engine.sample([Request(p[:64], 3, 0) for p in prompts])
        start = time.monotonic()
        first = engine.sample([Request(p, 1, n) for n, p in enumerate(prompts)])
        read = time.monotonic() - start
        start = time.monotonic()
        asked = [Request(p + f.ids, steps, n) for n, (p, f) in enumerate(zip(prompts, first))]  # noqa: B905
        engine.sample(asked)
        decoded = time.monotonic() - start
        recorded = engine.recorded
    return {
        "flash": engine.flash,
        "recorded": recorded,
        "conversations": rows,
        "context": length,
        "read_tokens_per_s": round(rows * length / read),
        "decode_tokens_per_s": round(rows * steps / decoded),
        "seconds_per_token": round(decoded / steps, 4),
    }


def playable(bench: Bench) -> int:
    """Return the number of episodes to play: that of the shape, or as many groups that fit into the
    cache as the time allows at the speed of the stage `probe`."""
    shape, found = bench.shape, bench.found().get("probe")
    if found is None or found["device"] != bench.facts()["device"]:
        return shape.episodes
    rows = int(found["conversations"])
    reading = REREAD * rows * shape.context / found["read_tokens_per_s"]
    left = bench.left() - JUDGING_S - AGREE_SHARE * bench.options.seconds
    groups = int(left / (reading + shape.turns * TOOLS_S))
    episodes = min(shape.episodes, rows * max(1, groups))
    if episodes < shape.episodes:
        print(f"{episodes} of {shape.episodes} episodes: {left:.0f} s are left, and {rows} take "
              f"about {reading + shape.turns * TOOLS_S:.0f} s", flush=True)  # fmt: skip
    return episodes


def sample(bench: Bench) -> Figures:
    """Play the episodes of the stage `sample` (see the module's docstring); return its figures."""
    shape, options, play = bench.shape, bench.options, bench.config.play
    episodes = options.episodes or playable(bench)
    tasks = load_tasks(task_folder(bench.out / "tasks"), bench.device)
    with make_pool(bench.config, bench.device, tasks) as pool:
        plays = make_collector(
            tasks, bench.chat, bench.actor, pool, bench.out, episodes, bench.config, print
        )
        room = min(play.context, positions_of(bench.actor) or play.context)
        fits = plays.engine.conversations() or episodes
        waves = -(-episodes // min(episodes, play.at_once, fits))
        reserve = AGREE_SHARE * options.seconds if "agree" in options.stages else 0
        end, turns = bench.end - reserve - JUDGING_S, shape.turns

        def note() -> None:
            """Write the figures so far, so that a killed stage leaves them."""
            bench.write("sample, not finished", reached(script))

        script = Scripted(plays.engine, bench.chat, turns, waves, room, end, options.reply, note)
        plays.engine = script
        plays.play = replace(plays.play, initial_files=script.files)
        plays.inputs = {"shape": options.shape, "reply": options.reply}
        start = time.monotonic()
        found = plays(0)
        seconds = time.monotonic() - start
    made = [sum(s.kind is Kind.ACTION for s in e.segments) for e in found]
    bench.write("sample, not finished", None)
    return {
        "episodes": len(found),
        "lost": plays.lost,
        "turns": [min(made), max(made)],
        "tokens": [min(e.tokens for e in found), max(e.tokens for e in found)],
        "prompt_tokens": len(bench.chat.prompt_ids(opening(tasks[0]), [t.spec for t in TOOLS])),
        "wall_seconds": round(seconds, 1),
        "sampled_tokens_per_s_of_wall": round(script.sampled / seconds),
        **reached(script),
        "metrics": {k: episode_metrics(found)[k] for k in ("reward", "correct")},
    }


def reached(script: Scripted) -> Figures:
    """Return the figures of the played turns: sampled and computed tokens, seconds in the engine
    and in the tools."""
    engine = script.engine
    assert isinstance(engine, CachedEngine)
    return {
        "flash": engine.flash,
        "recorded": engine.recorded,
        "sampled_tokens": script.sampled,
        "computed_tokens": script.computed or engine.computed,
        "engine_seconds": round(script.seconds, 1),
        "tool_seconds": round(script.tools, 1),
        "sampled_tokens_per_s_of_engine": round(script.sampled / max(script.seconds, 1e-9)),
        "of_each_turn": script.history,
    }


def agree(bench: Bench) -> Figures:
    """Compare log-probabilities from the sampler and from the trainer at the sampled tokens; return
    the differences."""
    played, source = bench.episodes()
    if source != "played":
        raise SystemExit("agree needs the episodes of the stage sample")
    bench.actor.eval()
    gaps, tokens, start = [], 0, time.monotonic()
    for at in range(0, len(played), 4):
        if at and bench.left() < 2 * (time.monotonic() - start) * 4 / at:
            break
        batch = collate(played[at : at + 4])
        found = per_token(bench.actor, batch, bench.shape.context, logprobs_of)
        own = batch.action & (batch.logprobs != DICTATED)
        gaps.append((found - batch.logprobs)[own].abs())
        tokens += int(batch.real.sum())
    gap, seconds = torch.cat(gaps), time.monotonic() - start
    ordered = gap.sort().values
    share = {p: float(ordered[int(p * (len(gap) - 1))]) for p in (0.5, 0.99, 0.999, 1.0)}
    return {
        "compared_tokens": len(gap),
        "beyond_0.02": round(float((gap > 0.02).float().mean()), 6),
        "mean": round(float(gap.mean()), 6),
        "median": round(share[0.5], 6),
        "p99": round(share[0.99], 6),
        "p99.9": round(share[0.999], 6),
        "largest": round(share[1.0], 6),
        "scored_tokens_per_s": round(tokens / seconds),
    }


def steps_of(
    bench: Bench, step: Callable[[Sequence[Episode], int], Any], most: int, of: int
) -> Figures:
    """Make up to `most` training steps on `of` episodes each; return tokens per second of each
    step."""
    episodes, source = bench.episodes()
    speeds: list[int] = []
    results: list[Any] = []
    took = 0.0
    for number in range(most):
        # A step of PPO takes about three times that of the other stages.
        if number and bench.left() < took * (1.2 + 2.5 * bench.later):
            break
        chosen = [episodes[(number * of + i) % len(episodes)] for i in range(of)]
        start = time.monotonic()
        results.append(step(chosen, number))
        if bench.device == "cuda":
            torch.cuda.synchronize()
        took = time.monotonic() - start
        speeds.append(round(sum(e.tokens for e in chosen) / took))
        print(f"  step {number}: {took:.1f} s, {speeds[-1]} tokens/s", flush=True)
    return {"episodes_of_a_step": of, "source": source, "tokens_per_s": speeds, "results": results}


def rft(bench: Bench) -> Figures:
    optimizer = make_optimizer(bench.actor, RATES)
    bench.actor.train()
    config = RftConfig(tokens_per_microbatch=bench.shape.context, optimizer=RATES)

    def step(chosen: Sequence[Episode], number: int) -> Any:
        return rft_step(bench.actor, optimizer, chosen, config, number)

    return steps_of(bench, step, 2, bench.options.batch or bench.shape.batch)


def value(bench: Bench) -> Figures:
    critic = bench.critic
    optimizer = make_optimizer(critic, RATES)
    critic.train()

    def step(chosen: Sequence[Episode], number: int) -> Any:
        batch = collate(chosen)
        loss = value_step(critic, batch, batch.outcome, bench.shape.context)
        return {"loss": loss, "grad_norm": apply_gradients(critic, optimizer, RATES, number)}

    return steps_of(bench, step, 2, bench.options.batch or bench.shape.batch)


def ppo(bench: Bench) -> Figures:
    critic = bench.critic
    bench.actor.eval()
    models = {"actor": bench.actor, "critic": critic}
    optimizers = {name: make_optimizer(model, RATES) for name, model in models.items()}
    config = PpoConfig(actor=RATES, critic=RATES, tokens_per_microbatch=bench.shape.context)

    def step(chosen: Sequence[Episode], number: int) -> Any:
        found = update(bench.actor, critic, optimizers, chosen, config, number)
        return {k: found[k] for k in ("actor_loss", "critic_loss", "first_log_ratio_max")}

    return steps_of(bench, step, 2, bench.options.ppo_episodes)


STAGES: dict[str, Callable[[Bench], Figures]] = {
    "probe": probe,
    "sample": sample,
    "agree": agree,
    "rft": rft,
    "value": value,
    "ppo": ppo,
}

if __name__ == "__main__":
    main()
