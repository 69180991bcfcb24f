"""Run the training stages for the commands: load policies, tasks and episodes, and save results.

A user trains any Hugging Face causal model with a chat template on any tasks.
Not covered: the loops themselves (`rft.py`, `value.py`, `ppo.py`), several processes.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuagent.agent.prompt import opening
from cuagent.agent.tools import TOOLS
from cuagent.record import list_runs
from cuagent.task import Task
from cuagent.timing import Effort
from cuagent.training import manifest, parallel
from cuagent.training.algorithms.curriculum import Curriculum
from cuagent.training.algorithms.metrics import Metrics, episode_metrics
from cuagent.training.algorithms.ppo import PpoConfig, ppo
from cuagent.training.algorithms.reward import max_reward
from cuagent.training.algorithms.rft import RftConfig, rft
from cuagent.training.algorithms.rft import steps_of as rft_steps_of
from cuagent.training.algorithms.value import ValueConfig, pretrain_value, value_steps_of
from cuagent.training.config import SEEDS, ConfigError, above, at_least, below, between
from cuagent.training.data.export import write_atif, write_chat, write_parquet
from cuagent.training.data.filters import Filters, filter_episodes
from cuagent.training.data.runs import load_runs
from cuagent.training.data.segments import Episode, RecordError, read_episodes
from cuagent.training.data.tasks import (
    Part,
    load_tasks,
    part_of,
    split,
    split_tasks,
    task_difficulties,
)
from cuagent.training.engines.continuous import ContinuousEngine
from cuagent.training.engines.engine import Engine, LocalEngine
from cuagent.training.engines.server import ServerEngine, can_reload
from cuagent.training.files import atomic_folder, write_atomic
from cuagent.training.judging.pool import JudgePool, Pool
from cuagent.training.judging.ray_pool import RayPool
from cuagent.training.policy.chat import Chat, load_chat
from cuagent.training.policy.checkpoint import latest_checkpoint
from cuagent.training.policy.lora import (
    Lora,
    adapt,
    is_adapted,
    merged,
    merged_for_now,
    plain_state_dict,
)
from cuagent.training.policy.model import (
    load_actor,
    load_critic,
    new_critic,
    positions_of,
    quiet_libraries,
    save_model,
)
from cuagent.training.policy.placement import Dtype, Placement, copy_weights, is_sharded, place
from cuagent.training.rollout.collect import Collector
from cuagent.training.rollout.episode import Play

Say = Callable[[str], None]
RESULT = "evaluation.json"


class Export(StrEnum):
    CHAT = "chat"
    ATIF = "atif"
    PARQUET = "parquet"


class Sampler(StrEnum):
    AUTO = "auto"
    """`continuous` on a GPU, `local` on the CPU."""
    LOCAL = "local"
    """Batches decoded one after the other; the same seeds give the same episodes."""
    CONTINUOUS = "continuous"
    """transformers' continuous batching, which caches the keys and values of conversations."""


@dataclass(frozen=True)
class PlayConfig:
    """Settings of episodes, with all tools and the full prompt of `cuagent optimize`."""

    turns: int = 40
    context: int = 32768
    reply: int = 4096
    temperature: float = 1.0
    seconds: float | None = None
    together: float = 1.0
    """Share of the live episodes for which the engine waits. Use less than 1 only if the judging
    devices do not sample, and 0 for engines that batch by themselves (a server, `continuous`)."""
    timed: bool = True
    """False gives rewards -1 and 1 only."""
    gpus: tuple[int, ...] = (0,)
    """Devices that judge."""
    at_once: int = 256
    """Episodes that run in parallel."""
    most_rows: int = 256
    """Conversations in one batch of the local engine."""
    cache_tokens: int | None = None
    """Tokens of all conversations whose keys and values are held at once; None takes what fits
    into a share of the GPU's free memory."""
    beside: int = 1
    """Kernels verified in parallel on each judging GPU; timing is exclusive."""
    ray: int = 0
    """Number of GPUs that judge as Ray actors, on any machine of the cluster; 0 judges on
    `gpus`."""
    engine: Sampler = Sampler.AUTO
    server: str | None = None
    """URL of a server that returns token ids: http://localhost:8000/v1 of vLLM, or SGLang's
    http://localhost:30000/generate. None samples in this process."""

    def __post_init__(self) -> None:
        at_least(1, self, "turns", "context", "reply", "beside")
        at_least(1, self, "at_once", "most_rows", "cache_tokens")
        if self.ray and self.beside > 1:
            raise ConfigError("play.ray needs play.beside=1: a Ray actor has one judge")
        at_least(0, self, "temperature", "ray")
        above(0, self, "seconds")
        between(0, 1, self, "together")


@dataclass(frozen=True)
class TrainConfig:
    """All settings of the stages."""

    seed: int = 0
    dtype: Dtype = Dtype.FP32
    """Type of weights and optimizer. In bfloat16 small updates are lost to rounding."""
    placement: Placement = field(default_factory=Placement)
    """Layout of the trained models."""
    lora: Lora = field(default_factory=Lora)
    """Adapters instead of all weights."""
    heldout: float = 0.1
    """Share of the tasks that are held out."""
    play: PlayConfig = field(default_factory=PlayConfig)
    filters: Filters = field(default_factory=Filters)
    rft: RftConfig = field(default_factory=RftConfig)
    value: ValueConfig = field(default_factory=ValueConfig)
    ppo: PpoConfig = field(default_factory=PpoConfig)
    ppo_episodes: int = 256
    heldout_episodes: int = 64
    """Episodes of each evaluation of PPO on the held-out tasks; 0 makes none."""
    single_turn: int = 0
    """Number of first PPO iterations in which an episode has one turn, the paper's warm-up: the one
    reply must contain all calls, including `submit`."""
    curriculum: bool = True

    def __post_init__(self) -> None:
        at_least(1, self, "ppo_episodes")
        at_least(0, self, "heldout", "heldout_episodes", "single_turn")
        below(1, self, "heldout")
        between(*SEEDS, self, "seed")


def collect(
    policy: Path,
    tasks: Path,
    out: Path,
    episodes: int,
    config: TrainConfig,
    device: str,
    say: Say,
    part: Part = Part.TRAIN,
) -> Metrics:
    """Play `episodes` episodes of a policy into `out/episodes/00000.jsonl`; return the metrics.

    An interrupted collection resumes; a finished one is not played again. Under torchrun every
    process plays its share. `part`: which tasks are played.
    """
    chat, actor = load_policy(policy, config)
    task_list, path = part_of(load_tasks(tasks, device), config.heldout, part), out / RESULT
    whole = out / "episodes" / "00000.jsonl"
    of = {"policy": digest_of_policy(actor, chat), "tasks": digest_of_tasks(task_list)}
    settings_used = settings_in(config, "seed", "dtype", "placement", "play") | {
        "episodes": episodes
    }
    before = manifest.open_manifest(out, "collect", of, settings_used, parallel.rank() == 0)
    if before is None and whole.exists():
        raise ConfigError(f"{whole} has no manifest.json with its settings; use another --out")
    if before is not None and path.exists():
        say(f"{out} is already finished; use another --out to start again")
        return report(json.loads(path.read_text(encoding="utf-8")), say)
    config = with_context(with_sampler(config, device), actor, say)
    if config.play.server is not None:
        pass  # the server samples, so the actor stays on the CPU
    elif samples_from_pages(config):
        actor = actor.to(device, config.placement.compute.torch)
    else:
        actor = place(actor, Placement(compute=config.placement.compute), device)
    with make_pool(config, device, task_list) as pool:
        plays = make_collector(task_list, chat, actor, pool, out, episodes, config, say)
        plays.inputs = {**of, **settings_used}
        found = list(read_episodes(whole)) if whole.exists() else plays(0)
    metrics = episode_metrics(found)
    if parallel.rank() == 0:
        write_atomic(path, json.dumps(metrics, indent=1))
    parallel.barrier()
    return report(metrics, say)


def report(metrics: Metrics, say: Say) -> Metrics:
    """Print the reward and the share of correct kernels; return the metrics."""
    say(f"reward {metrics['reward']:+.3f}, correct {metrics['correct']:.0%}")
    return metrics


def run_rft(
    policy: Path, sources: Sequence[Path], out: Path, config: TrainConfig, device: str, say: Say
) -> None:
    """Run RFT of a policy on runs (folders) or episodes (JSONL); save the model in `out/model`."""
    chat, actor = load_policy(policy, config)
    train, heldout = split(episodes_of(sources, chat, say), config.heldout)
    check_ids([*train, *heldout], actor)
    positions = positions_of(actor)
    kept, funnel = filter_episodes(train, config.filters, positions)
    of = {
        "policy": digest_of_policy(actor, chat),
        "episodes": digest_of_episodes([*train, *heldout]),
    }
    settings_used = settings_in(config, "dtype", "placement", "lora", "heldout", "filters", "rft")
    steps = rft_steps_of(config.rft, len(kept))
    reached = resume_step(out, say, "rft", of, settings_used, steps)
    if reached is None:
        return
    for line in funnel.lines():
        say(line)
    if parallel.rank() == 0 and not reached:  # a resumed run has the file already
        write_atomic(out / "funnel.json", json.dumps(asdict(funnel)))
    if not kept:
        raise RecordError("no episode passes the filters; see the counts above and relax filters.*")
    actor = prepare_model(actor, config, device)
    judged = filter_episodes(heldout, config.filters, positions)[0]
    rft(actor, kept, judged, config.rft, out, say)
    save_final(actor, out / "model", chat)
    finish(out, steps)


def run_value(
    policy: Path, sources: Sequence[Path], out: Path, config: TrainConfig, device: str, say: Say
) -> None:
    """Pretrain a critic on the policy's backbone; save it in `out/model`."""
    chat, actor = load_policy(policy, config)
    train, heldout = split(episodes_of(sources, chat, say), config.heldout)
    check_ids([*train, *heldout], actor)
    check_lengths([*train, *heldout], positions_of(actor))
    of = {
        "policy": digest_of_policy(actor, chat),
        "episodes": digest_of_episodes([*train, *heldout]),
    }
    settings_used = settings_in(config, "dtype", "placement", "lora", "heldout", "value")
    steps = value_steps_of(config.value, len(train))
    if resume_step(out, say, "value", of, settings_used, steps) is None:
        return
    critic = prepare_model(new_critic(actor), config, device)
    pretrain_value(critic, train, heldout, config.value, out, say)
    save_final(critic, out / "model")
    finish(out, steps)


def run_ppo(
    policy: Path,
    critic: Path | None,
    tasks: Path,
    out: Path,
    config: TrainConfig,
    device: str,
    say: Say,
) -> None:
    """Run PPO; without a pretrained critic it starts from a head of zeros."""
    server = config.play.server
    if server is not None and not can_reload(server):
        raise RecordError(
            f"play.server={server}: PPO needs a server that can load new weights while it runs: "
            "SGLang (http://HOST:PORT/generate); unset play.server to sample in this process"
        )
    if config.play.temperature != 1.0:
        raise RecordError("PPO needs play.temperature=1; other temperatures bias its ratios")
    chat, actor = load_policy(policy, config)
    values = new_critic(actor)
    if critic is not None:
        with policy_errors(critic):
            values = load_critic(critic, config.dtype.torch)
    config = with_context(with_sampler(config, device), actor, say)
    task_list = load_tasks(tasks, device)
    of = {
        "policy": digest_of_policy(actor, chat),
        "critic": digest_of_model(values),
        "tasks": digest_of_tasks(task_list),
    }
    settings_used = settings_in(
        config, "seed", "dtype", "placement", "lora", "play", "ppo", "ppo_episodes"
    )
    settings_used |= settings_in(config, "single_turn", "curriculum", "heldout", "heldout_episodes")
    if resume_step(out, say, "ppo", of, settings_used, config.ppo.iterations) is None:
        return
    values, actor = prepare_model(values, config, device), prepare_model(actor, config, device)
    sampler = sampling_actor(actor, policy, config, device)
    reference = None
    if config.ppo.kl_weight:
        reference = place(load_policy(policy, config)[1], config.placement, device)
    with make_pool(config, device, task_list) as pool:
        train, heldout = split_tasks(task_list, config.heldout)
        plays = make_collector(train, chat, sampler, pool, out, config.ppo_episodes, config, say)
        if config.curriculum:
            plays.curriculum = Curriculum(highest=max_reward(config.play.timed))
            plays.difficulties = task_difficulties(tasks, task_list)

        def renew_sampler() -> None:
            if sampler is not actor:
                copy_weights(actor, into=sampler)
            if isinstance(plays.engine, ServerEngine):
                save_served(actor, out / "served", chat)
                if parallel.rank() == 0:
                    plays.engine.load((out / "served").resolve())
                parallel.barrier()

        def collect(iteration: int) -> list[Episode]:
            renew_sampler()
            turns = 1 if iteration < config.single_turn else config.play.turns
            plays.play = replace(plays.play, turns=turns)
            return plays(iteration)

        judged = None
        if heldout and config.heldout_episodes:
            judged = replace(
                plays,
                tasks=heldout,
                out=out / "heldout",
                episodes=config.heldout_episodes,
                curriculum=None,
                play=replace(plays.play, turns=config.play.turns),
            )
        elif config.heldout_episodes:
            say(f"none of {len(task_list)} tasks is held out: the last weights are kept")

        def evaluate(iterations: int) -> list[Episode]:
            assert judged is not None
            renew_sampler()
            return judged(iterations)

        ppo(
            actor,
            values,
            collect,
            config.ppo,
            out,
            say,
            reference,
            evaluate=evaluate if judged is not None else None,
        )
    save_final(actor, out / "model", chat)
    save_final(values, out / "critic")
    finish(out, step_of(latest_checkpoint(out)))


def export(runs: Path, form: Export, out: Path, policy: Path | None) -> int:
    """Write runs in another format; parquet needs the policy whose tokenizer made the ids."""
    found = list_runs(runs)
    if not found:
        raise RecordError(f"{runs}: no runs")
    if out.exists() and out.is_dir() != (form is Export.ATIF):
        raise RecordError(f"{out}: {form} needs a {'folder' if form is Export.ATIF else 'file'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if form is Export.CHAT:
        return write_chat(found, out)
    if form is Export.ATIF:
        return write_atif(found, out)
    if policy is None:
        raise RecordError("parquet holds token ids; add --policy for the tokenizer")
    with policy_errors(policy):
        chat = load_chat(policy)
    return write_parquet(load_runs(runs, chat).episodes, out)


def episodes_of(sources: Sequence[Path], chat: Chat, say: Say) -> list[Episode]:
    """Load episodes from JSONL files and folders of runs; print how many runs were
    skipped and why."""
    found: list[Episode] = []
    for source in sources:
        if not source.exists():
            raise RecordError(f"{source}: no such file or folder")
        if source.is_file():
            found += read_episodes(source)
            continue
        loaded = load_runs(source, chat)
        for why, count in loaded.left_out.items():
            say(f"{source}: {count} runs skipped: {why}")
        found += loaded.episodes
    foreign = next((e.id for e in found if e.tokenizer != chat.fingerprint), None)
    if foreign is not None:
        raise RecordError(f"episode {foreign} has the ids of another tokenizer, not the policy's")
    if not found:
        raise RecordError(f"no episodes in {', '.join(map(str, sources))}")
    return found


def check_ids(episodes: Sequence[Episode], actor: Any) -> None:
    """Raise RecordError if a token id exceeds the model's vocabulary."""
    size = actor.get_input_embeddings().num_embeddings
    for episode in episodes:
        most = max(max(s.ids, default=0) for s in episode.segments)
        if most >= size:
            raise RecordError(f"episode {episode.id}: token id {most}, but the policy has {size}")


def check_lengths(episodes: Sequence[Episode], positions: int | None) -> None:
    """Raise RecordError if a context window has more tokens than the model has positions."""
    for episode in episodes:
        if positions is not None and (length := episode.longest_window) > positions:
            raise RecordError(
                f"episode {episode.id}: {length} tokens, but the policy has {positions} positions; "
                f"collect with play.context={positions}, or use a policy with a longer context"
            )


def with_context(config: TrainConfig, actor: Any, say: Say) -> TrainConfig:
    """Return settings whose play.context is at most the policy's positions, and say so."""
    positions, asked = positions_of(actor), config.play.context
    if positions is None or asked <= positions:
        return config
    say(f"play.context={asked} is over the policy's {positions} positions; {positions} is used")
    return replace(config, play=replace(config.play, context=positions))


def with_sampler(config: TrainConfig, device: str) -> TrainConfig:
    """Return settings in which `play.engine=auto` is replaced by the engine for the device."""
    if config.play.engine is not Sampler.AUTO:
        return config
    # Adapters cannot be copied to a sampler of another type, and pages have the weights' type.
    pages = device.startswith("cuda") and (
        not config.lora.rank or config.placement.compute is config.dtype
    )
    engine = Sampler.CONTINUOUS if pages else Sampler.LOCAL
    return replace(config, play=replace(config.play, engine=engine))


def resume_step(
    out: Path, say: Say, command: str, of: manifest.Names, settings_used: manifest.Names, steps: int
) -> int | None:
    """Return the step from which a stage resumes; None if it is finished. Raises ConfigError."""
    reached = step_of(newest := latest_checkpoint(out))
    before = manifest.open_manifest(out, command, of, settings_used, parallel.rank() == 0)
    if reached > steps:
        raise ConfigError(f"{out} is at step {reached}, beyond {steps}; use another --out")
    finished = before is not None and before.get("finished") == steps
    if finished and (out / "model").exists():
        say(f"{out} is already finished; use another --out to start again")
        return None
    if newest is not None:
        say(f"resuming from {newest}; use another --out to start again")
    return reached


def finish(out: Path, steps: int) -> None:
    """Record in the manifest that the stage of `steps` is complete, perhaps by an early stop.

    Every process calls it after saving.
    """
    if parallel.rank() == 0:
        manifest.finish(out, steps)


def step_of(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("step-"))


def settings_in(config: TrainConfig, *names: str) -> dict[str, Any]:
    """Return the settings in some of the tables, without the number of steps of a stage."""
    known = manifest.fixed_settings(
        config, *("rft.steps", "rft.epochs", "value.steps", "value.epochs", "ppo.iterations")
    )
    return {name: value for name, value in known.items() if name.partition(".")[0] in names}


def digest_of(parts: Iterable[bytes]) -> str:
    """Return a short hash of data that is too long for the manifest; paths do not enter it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def digest_of_model(model: Any) -> str:
    """Hash the first numbers of each tensor: training changes them all."""
    return digest_of(
        name.encode() + tensor.flatten()[:256].float().numpy().tobytes()
        for name, tensor in model.state_dict().items()
    )


def digest_of_policy(actor: Any, chat: Chat) -> str:
    return digest_of([digest_of_model(actor).encode(), chat.fingerprint.encode()])


def digest_of_tasks(tasks: Sequence[Task]) -> str:
    return digest_of(task.digest.encode() for task in tasks)


def digest_of_episodes(episodes: Sequence[Episode]) -> str:
    return digest_of(
        repr(replace(episode, segments=())).encode()
        + b"".join(array("q", segment.ids).tobytes() for segment in episode.segments)
        for episode in episodes
    )


def load_policy(folder: Path, config: TrainConfig) -> tuple[Chat, Any]:
    """Load tokenizer and actor of a Hugging Face folder; the actor on the CPU."""
    with policy_errors(folder):
        return load_chat(folder), load_actor(folder, config.dtype.torch)


@contextmanager
def policy_errors(folder: Path) -> Iterator[None]:
    """Turn errors about a Hugging Face folder or name into a RecordError of one line."""
    absent = not folder.exists()
    if absent and (len(folder.parts) != 2 or folder.parent.exists()):
        # Not OWNER/NAME of the hub either; its few one-word names have no chat template.
        raise RecordError(f"{folder}: no such folder")
    quiet_libraries()
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(": ")
        also = "no such folder, and " if absent else ""
        raise RecordError(f"{folder}: {also}not a Hugging Face model ({reason})") from error


def prepare_model(model: Any, config: TrainConfig, device: str) -> Any:
    """Place a model for training according to the settings. Raises ConfigError."""
    if config.lora.rank and config.placement.sharded:
        raise ConfigError("lora.rank and placement.sharded cannot be combined: unset one of them")
    return place(adapt(model, config.lora), config.placement, device)


def sampling_actor(actor: Any, policy: Path, config: TrainConfig, device: str) -> Any:
    """Return the actor that samples: the trained one, or a full copy on every process.

    A copy is needed for a sharded actor, and for paged sampling if the compute type differs from
    the weights' type, since the pages hold results of the compute type.
    Raises ConfigError.
    """
    compute = config.placement.compute
    apart = is_sharded(actor) or (samples_from_pages(config) and compute is not config.dtype)
    if config.play.server is not None or not apart:
        return actor
    if config.lora.rank:
        raise ConfigError(
            "play.engine=continuous with lora.rank needs placement.compute equal to dtype"
        )
    return load_actor(policy, compute.torch).to(device)


def samples_from_pages(config: TrainConfig) -> bool:
    """Return True if the actor samples with paged keys and values, which have its weights' type."""
    return config.play.engine is Sampler.CONTINUOUS and config.play.server is None


def make_collector(
    tasks: Sequence[Task],
    chat: Chat,
    actor: Any,
    pool: Pool,
    out: Path,
    episodes: int,
    config: TrainConfig,
    say: Say,
) -> Collector:
    p = config.play
    engine = make_engine(actor.eval(), chat, min(episodes, p.at_once), config)
    limits = (p.turns, p.context, p.reply, p.temperature, p.seconds)
    play = Play(TOOLS, opening, *limits, ladder=p.timed, together=p.together)
    return Collector(
        tasks,
        chat,
        engine,
        pool,
        play,
        out,
        episodes,
        config.seed,
        max_in_flight=p.at_once,
        say=say,
    )


def make_engine(actor: Any, chat: Chat, max_in_flight: int, config: TrainConfig) -> Engine:
    """Return the engine that samples the actor for `max_in_flight` conversations."""
    p = config.play
    if p.server is not None:
        return ServerEngine(p.server, actor.name_or_path, chat.end)
    if samples_from_pages(config):
        # On the CPU a cache of the whole free memory would be allocated, so it is bounded.
        fits = actor.device.type == "cuda"
        tokens = p.cache_tokens or (None if fits else max_in_flight * p.context)
        return ContinuousEngine(actor, chat.end, tokens, p.temperature)
    return LocalEngine(actor, chat.end, p.most_rows, tokens=p.cache_tokens)


def make_pool(config: TrainConfig, device: str, tasks: Sequence[Task] = ()) -> JudgePool | RayPool:
    """Return the pool of judges.

    With several processes, each judges on the device that it trains on, or all share Ray actors.
    """
    effort = Effort.QUICK if config.play.timed else None
    if config.play.ray:
        shared = "judge" if parallel.size() > 1 else None
        return RayPool(config.play.ray, effort, device.startswith("cuda"), name=shared, tasks=tasks)
    own = (int(os.environ.get("LOCAL_RANK", "0")),)
    gpus = config.play.gpus if parallel.size() == 1 else own
    return JudgePool(effort, gpus=gpus, judges_per_gpu=config.play.beside)


def save_served(actor: Any, folder: Path, chat: Chat) -> None:
    """Save the actor's present weights for a server; an adapter is merged while they are saved."""
    if not is_adapted(actor):
        save_final(actor, folder, chat)
        return
    first = parallel.rank() == 0
    with atomic_folder(folder) if first else nullcontext(folder) as partial, merged_for_now(actor):
        save_model(actor.get_base_model(), partial, plain_state_dict(actor))
        if first:
            chat.save(partial)
    parallel.barrier()


def save_final(model: Any, folder: Path, chat: Chat | None = None) -> None:
    """Save a finished model atomically, and an adapter separately next to it."""
    first = parallel.rank() == 0
    plain = merged(model, folder.with_name(f"{folder.name}-adapter"))
    with atomic_folder(folder) if first else nullcontext(folder) as partial:
        save_model(plain, partial)
        if chat is not None and first:
            chat.save(partial)
    parallel.barrier()
