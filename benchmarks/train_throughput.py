"""Measure tokens per second of RFT and PPO updates, against TRL's SFT trainer on the same batch.

    python benchmarks/train_throughput.py --preset tiny                    # a dry run, on a CPU too
    CUDA_VISIBLE_DEVICES=0 python benchmarks/train_throughput.py --preset h200 --out one.json
    torchrun --nproc-per-node 2 benchmarks/train_throughput.py --preset h200 --out two.json

All arms train the same decoder (random weights, fp32 with bf16 products, fused AdamW) on the same
rows: agent episodes, with two sevenths of the tokens sampled. A result is the median over rounds
that alternate between the arms; a step is one optimizer step over the whole batch. Rows of one
length compare the trainers only; rows of many lengths also show the cost of padding. With several
processes only cuagent's updates are timed, in replicas and in shards, with the same total batch for
any number of processes (strong scaling). TRL (`pip install trl`, with datasets) no longer has a PPO
with a critic, so PPO has no counterpart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from cuagent.training import parallel
from cuagent.training.algorithms.losses import imitation_loss
from cuagent.training.algorithms.ppo_update import PpoConfig, update
from cuagent.training.data.batch import collate
from cuagent.training.data.segments import Episode, Kind, Segment
from cuagent.training.policy.model import device_microbatches, logprobs_of, new_critic
from cuagent.training.policy.optimize import AdamW, apply_gradients, make_optimizer
from cuagent.training.policy.placement import Dtype, Placement, place

RATES = AdamW(lr=1e-6)


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    vocabulary: int
    rows: int
    """Number of episodes in a training step."""
    tokens: int
    """Number of tokens of the longest episode."""
    micro: int
    """Number of rows of the longest length in one forward pass."""
    steps: int
    rounds: int


PRESETS = {
    "tiny": Size(2, 64, 2, 512, 8, 96, 4, 2, 2),
    "h200": Size(16, 1024, 16, 32768, 32, 2048, 8, 2, 3),
    # The width, depth and vocabulary of Qwen2.5-1.5B; two such models and 4,096 tokens need 70 GB.
    "qwen-1.5b": Size(28, 1536, 12, 151936, 16, 4096, 1, 1, 3),
}
ARMS = ("rft", "ppo", "trl padded", "trl packed", "trl packed short")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--arms", default=",".join(ARMS), help="what to compare, by commas")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    device = parallel.start("cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.arms.split(",")
    if wrong := set(chosen) - set(ARMS):
        parser.error(f"unknown arms: {', '.join(wrong)}; known: {', '.join(ARMS)}")
    found = figures(PRESETS[options.preset], chosen, device)
    if options.out and parallel.rank() == 0:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    parallel.stop()


def figures(size: Size, chosen: list[str], device: str) -> dict[str, Any]:
    """Measure the chosen arms; print each result when it is measured, and return all."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "processes": parallel.size(),
        "size": asdict(size),
    }
    for name, shortest in (("one length", 1.0), ("many lengths", 0.25)):
        found[name] = measure(size, episodes(size, shortest), chosen, device)
        if parallel.rank() == 0:
            print(f"{name}: {json.dumps(found[name])}", flush=True)
    return found


def episodes(size: Size, shortest: float) -> list[Episode]:
    """Return episodes of random ids: a prompt, then two turns, each followed by a tool result of
    double length.

    Their lengths are spread evenly from the share `shortest` of `size.tokens` to all of it.
    """
    rng = torch.Generator().manual_seed(0)
    shares = torch.linspace(shortest, 1.0, size.rows)[torch.randperm(size.rows, generator=rng)]
    kinds = (Kind.PROMPT, Kind.ACTION, Kind.OBSERVATION, Kind.ACTION, Kind.OBSERVATION)
    found = []
    for number, share in enumerate(shares.tolist()):
        part = max(2, int(share * size.tokens) // 7)
        segments = []
        for kind in kinds:
            n = 2 * part if kind is Kind.OBSERVATION else part
            ids = tuple(torch.randint(3, size.vocabulary, (n,), generator=rng).tolist())
            segments.append(Segment(kind, ids, (-10.0,) * n if kind is Kind.ACTION else None))
        found.append(
            Episode(f"e{number}", "t", "t", tuple(segments), float(number % 4), "submitted")
        )
    return found


def measure(size: Size, rows: list[Episode], chosen: list[str], device: str) -> dict[str, Any]:
    """Return unpadded tokens per second of each arm, and the peak memory."""
    placements = {"": Placement(compute=Dtype.BF16)}
    if parallel.size() > 1:
        placements[" in shards"] = Placement(sharded=True, compute=Dtype.BF16)
    tokens = sum(e.tokens for e in rows)
    found: dict[str, Any] = {}
    for label, placement in placements.items():
        arms: dict[str, Callable[[], float]] = {}
        if "rft" in chosen:
            arms[f"rft{label}"] = ours(size, rows, placement, device)
        if "ppo" in chosen:
            arms[f"ppo{label}"] = ours_ppo(size, rows, placement, device)
        if parallel.size() == 1:
            arms |= trl_arms(size, rows, chosen, device)
        times: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(size.rounds):
            for name, arm in arms.items():
                if device != "cpu":
                    torch.cuda.reset_peak_memory_stats()
                times[name].append(arm())
                if device != "cpu":
                    peak = torch.cuda.max_memory_allocated() / 2**30
                    found[f"{name}, peak GiB with the other arms' weights"] = round(peak, 2)
        for name, seconds in times.items():
            found[f"{name}, tokens/s"] = round(tokens / statistics.median(seconds))
            found[f"{name}, tokens/s of each round"] = [round(tokens / s) for s in seconds]
    theirs = {name: v for name, v in found.items() if name in {f"{a}, tokens/s" for a in ARMS[2:]}}
    for name, speed in theirs.items():
        if "rft, tokens/s" in found:
            found[f"rft over {name.partition(',')[0]}"] = round(found["rft, tokens/s"] / speed, 3)
    return found


def trl_arms(
    size: Size, rows: list[Episode], chosen: list[str], device: str
) -> dict[str, Callable[[], float]]:
    """Return TRL's arms by name: padded rows, and packed rows with the length of one microbatch or
    of one longest episode.

    Shorter packed rows are an arm because transformers' attention without the package flash-attn
    computes a mask of all pairs of a packed row, which costs less in short rows.
    """
    lengths = {"trl packed": size.micro * size.tokens, "trl packed short": size.tokens}
    arms: dict[str, Callable[[], float]] = {}
    if "trl padded" in chosen:
        arms["trl padded"] = theirs(size, rows, device, None)
    for name, length in lengths.items():
        if name in chosen:
            arms[name] = theirs(size, rows, device, length)
    return arms


def decoder(size: Size, attention: str = "sdpa") -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.tokens,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    # Random numbers for a few hundred million weights take seconds on a CPU.
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def ours(size: Size, rows: list[Episode], placement: Placement, device: str) -> Callable[[], float]:
    """Return a function that runs RFT steps, as in `rft.py`, and returns the seconds per step."""
    actor = place(decoder(size), placement, device)
    optimizer = make_optimizer(actor, RATES)
    actor.train()

    def step() -> None:
        batch = collate(rows)
        losses = []
        for _, part in device_microbatches(batch, size.micro * size.tokens, actor):
            loss = imitation_loss(logprobs_of(actor, part), part.action, batch.action_tokens)
            loss.backward()
            losses.append(loss.detach())
        float(sum(losses))
        apply_gradients(actor, optimizer, RATES, 0)

    return timed(step, size.steps, device)


def ours_ppo(
    size: Size, rows: list[Episode], placement: Placement, device: str
) -> Callable[[], float]:
    """Return a function that runs PPO updates and returns the seconds per update.

    In an update both models score the batch and learn from it once.
    """
    start = decoder(size)
    critic = place(new_critic(start), placement, device)
    actor = place(start, placement, device)
    optimizers = {"actor": make_optimizer(actor, RATES), "critic": make_optimizer(critic, RATES)}
    config = PpoConfig(
        minibatches=1, actor=RATES, critic=RATES, tokens_per_microbatch=size.micro * size.tokens
    )

    def step() -> None:
        update(actor, critic, optimizers, rows, config, 0)

    return timed(step, size.steps, device)


def timed(step: Callable[[], None], steps: int, device: str) -> Callable[[], float]:
    """Run one step to warm up; return a function that runs `steps` steps and returns the seconds
    per step."""

    def wait() -> float:
        if device != "cpu":
            torch.cuda.synchronize()
        parallel.barrier()
        return time.perf_counter()

    step()

    def run() -> float:
        start = wait()
        for _ in range(steps):
            step()
        return (wait() - start) / steps

    return run


def theirs(size: Size, rows: list[Episode], device: str, packed: int | None) -> Callable[[], float]:
    """Return a function that runs TRL's SFTTrainer on the same rows and returns the seconds per
    step.

    `packed`: length of the rows into which TRL packs episodes (best fit decreasing); None: padded
    rows.
    """
    import datasets
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from transformers.utils import logging
    from trl import SFTConfig, SFTTrainer, pack_dataset

    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    # Set the fingerprint, because some versions of datasets cannot pickle the rows to compute it.
    table = InMemoryTable.from_pylist([as_labels(e) for e in rows])
    data = Dataset(table, fingerprint="episodes")
    if packed is not None:
        data = pack_dataset(data, packed, "bfd", {"new_fingerprint": f"packed-{packed}"})
    at_a_time = 1 if packed else size.micro
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE({"<e>": 1, "<p>": 2, "<b>": 0}, [])),
        pad_token="<p>",
        eos_token="<e>",
    )

    class Clock(TrainerCallback):
        """Callback that records the end of each step; the first step is the warm-up."""

        def __init__(self) -> None:
            self.marks: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if device != "cpu":
                torch.cuda.synchronize()
            self.marks.append(time.perf_counter())

    folder = tempfile.mkdtemp()
    # Packed rows are quickest with flash-attn, where this package is installed.
    attention = "flash_attention_2" if packed and find_spec("flash_attn") else "sdpa"

    def run() -> float:
        clock = Clock()
        settings = SFTConfig(
            folder,
            max_steps=size.steps + 1,
            per_device_train_batch_size=at_a_time,
            gradient_accumulation_steps=len(data) // at_a_time,
            packing=packed is not None,
            padding_free=packed is not None,
            learning_rate=RATES.lr,
            lr_scheduler_type="constant",
            bf16=True,
            use_cpu=device == "cpu",
            gradient_checkpointing=False,
            optim="adamw_torch_fused" if device != "cpu" else "adamw_torch",
            max_length=packed,
            dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=False,
            dataloader_num_workers=0,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = SFTTrainer(
            # A trainer wraps its model's forward; a second trainer on the same model took three
            # times as long.
            decoder(size, attention).to(device),
            settings,
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.train()
        return (clock.marks[-1] - clock.marks[0]) / size.steps

    return run


def as_labels(episode: Episode) -> dict[str, list[int]]:
    """Return an episode in TRL's form: token ids, and labels that are -100 except on sampled
    tokens."""
    ids = [i for s in episode.segments for i in s.ids]
    labels = [i if s.kind is Kind.ACTION else -100 for s in episode.segments for i in s.ids]
    return {"input_ids": ids, "labels": labels}


if __name__ == "__main__":
    main()
