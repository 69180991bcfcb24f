"""Compare the loss and the gradient of an RFT step and of a PPO step with TRL's, on the same data.

    pip install trl datasets        # in another environment; 1.16.0 was compared
    python benchmarks/against_trl.py

A tiny decoder with random weights, fp32, on the CPU; episodes with tool output and of different
lengths.

- RFT: `SFTTrainer.compute_loss`, on padded rows and on TRL's padding-free rows.
- PPO: `GRPOTrainer._compute_loss` with `loss_type=bnpo`, bounds 0.2 and 0.28 and no KL. It accepts
  one advantage per token, so it gets ours; `tool_mask` masks the tokens that were not sampled. TRL
  has no critic any more: advantages and the value loss are compared with a plain reference instead
  (tests/training/algorithms/test_reference.py).

The script fails if a loss or a gradient differs by more than rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from train_throughput import Size, as_labels, decoder, episodes

from cuagent.training.algorithms.losses import imitation_loss
from cuagent.training.algorithms.ppo_update import PpoConfig, estimate, policy_step
from cuagent.training.data.batch import Batch, collate
from cuagent.training.policy.model import device_microbatches, logprobs_of, per_token
from cuagent.training.policy.packed_attention import use_packing

SIZE = Size(2, 64, 2, 256, 6, 80, 3, 1, 1)
TOLERANCE = 1e-5
"""Largest accepted difference of a loss (relative), and of a gradient (relative to its largest
absolute entry)."""


def main() -> None:
    torch.set_num_threads(1)
    rows = episodes(SIZE, 0.3)
    batch = collate(rows)
    wrong = []
    for name, ours, theirs in (
        ("RFT, padded rows", rft(batch, False), trl_sft(rows, False)),
        ("RFT, packed rows", rft(batch, True), trl_sft(rows, True)),
        ("PPO, actor", *both_ppo(batch)),
    ):
        gap = abs(ours[0] - theirs[0]) / abs(theirs[0])
        spread = float((ours[1] - theirs[1]).abs().max() / theirs[1].abs().max())
        print(f"{name}: loss {ours[0]:.7f}, TRL {theirs[0]:.7f}; differences {gap:.1e} (loss), "
              f"{spread:.1e} (gradient)")  # fmt: skip
        wrong += [name] if max(gap, spread) > TOLERANCE else []
    if wrong:
        raise SystemExit(f"differ by more than rounding: {', '.join(wrong)}")


Step = tuple[float, torch.Tensor]
"""A loss, and its gradient with respect to all weights as one flat vector."""


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for _, p in sorted(model.named_parameters())])


def rft(batch: Batch, packed: bool) -> Step:
    """Return loss and gradient of cuagent's RFT step on the batch."""
    actor = decoder(SIZE)
    if packed and not use_packing(actor):
        raise SystemExit("this model cannot be packed")
    total = 0.0
    for _, part in device_microbatches(batch, SIZE.micro * SIZE.tokens, actor):
        loss = imitation_loss(logprobs_of(actor, part), part.action, batch.action_tokens)
        loss.backward()
        total += float(loss.detach())
    return total, gradient(actor)


def trl_sft(rows: list[Any], packed: bool) -> Step:
    """Return loss and gradient of TRL's SFT step on the same rows, in one pass."""
    from trl import SFTConfig, SFTTrainer

    data = [as_labels(e) for e in rows]
    settings = SFTConfig(
        tempfile.mkdtemp(),
        per_device_train_batch_size=len(rows),
        max_length=None,
        padding_free=packed,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        decoder(SIZE), settings, train_dataset=dataset(data), processing_class=tokenizer()
    )
    inputs = trainer.data_collator(data)
    count = (inputs["labels"][:, 1:] != -100).sum()
    loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=count)
    loss.backward()
    return float(loss), gradient(trainer.model)


def both_ppo(batch: Batch) -> tuple[Step, Step]:
    """Return (loss, gradient) of cuagent's PPO step of the actor, and of TRL's, from the same
    advantages and old log-probabilities."""
    config = PpoConfig(tokens_per_microbatch=SIZE.micro * SIZE.tokens)
    start = per_token(decoder(SIZE), batch, 10_000, logprobs_of)
    generator = torch.Generator().manual_seed(0)
    # Old log-probabilities differ from the new ones, so that both bounds of the clip act.
    old = start + 0.3 * torch.randn(start.shape, generator=generator) * batch.action
    values = torch.randn(start.shape, generator=generator)
    advantages, _ = estimate(batch, values, config)

    actor = decoder(SIZE)
    use_packing(actor)
    loss, _, clipped = policy_step(actor, batch, old, advantages, None, None, config)
    if not 0.05 < float(clipped.float().mean()) < 0.95:
        raise SystemExit("the clip does not act, so this comparison shows little")
    return (loss, gradient(actor)), trl_grpo(batch, old, advantages, config)


def trl_grpo(batch: Batch, old: torch.Tensor, advantages: torch.Tensor, config: PpoConfig) -> Step:
    """Return loss and gradient of TRL's GRPO step, with given old log-probabilities and advantages
    per token.

    For TRL the prompt is the first token of a row, and the completion is the rest.
    """
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        num_generations=2,
        epsilon=config.clip.low,
        epsilon_high=config.clip.high,
        beta=0.0,
        loss_type="bnpo",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        disable_tqdm=True,
    )
    reward: Callable[..., list[float]] = lambda completions, **_: [0.0] * len(completions)  # noqa: E731
    trainer = GRPOTrainer(
        decoder(SIZE), reward, settings, processing_class=tokenizer(),
        train_dataset=dataset([{"prompt": "x"}] * 2),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    real = batch.real.long()
    loss = trainer._compute_loss(
        trainer.model.train(),
        {
            "prompt_ids": batch.ids[:, :1],
            "prompt_mask": real[:, :1],
            "completion_ids": batch.ids[:, 1:],
            "completion_mask": real[:, 1:],
            "tool_mask": batch.action[:, 1:].long(),
            "advantages": advantages[:, 1:],
            "old_per_token_logps": old[:, 1:],
            "num_items_in_batch": torch.tensor(batch.action_tokens),
        },
    )
    loss.backward()
    return float(loss), gradient(trainer.model)


def dataset(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset
    from datasets.table import InMemoryTable

    # Set the fingerprint, because some versions of datasets cannot pickle the rows to compute it.
    return Dataset(InMemoryTable.from_pylist(rows), fingerprint="rows")


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<e>": 1, "<p>": 2, "<b>": 0, "x": 3}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(words, [])), pad_token="<p>", eos_token="<e>"
    )


if __name__ == "__main__":
    main()
