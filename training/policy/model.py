"""Create, load and save actor and critic (Hugging Face models), and run their forward passes.

The actor is any causal language model. The critic has the same backbone, with a
token-classification head of one label. Its dropout is 0, because Hugging Face's default of 0.1
would make its values noisy. Its head begins with zeros, so that the first predictions are 0.
Not covered: sampling (`engine.py`), devices and sharding (`placement.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuagent.training import parallel
from cuagent.training.algorithms.losses import token_entropy, token_logprobs
from cuagent.training.data.batch import Batch, microbatches, packed_microbatches, take
from cuagent.training.data.segments import RecordError
from cuagent.training.policy.head import logits as logits_of
from cuagent.training.policy.head import spans, token_logprobs_of
from cuagent.training.policy.packed_attention import arguments, packs
from cuagent.training.policy.placement import full_state_dict, is_sharded

OfLogits = Callable[[Tensor, Tensor], Tensor]
OfHidden = Callable[[Any, Tensor, Tensor], Tensor]
AFTER_HEAD = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")
"""Configuration names of scaling or capping that some model families apply to the logits after the
head."""
FIRST_ROW = torch.tensor([0])
"""Row indices [1] that select row 0."""


def small_config(
    vocabulary: int, layers: int, width: int, heads: int, context: int, end: int, pad: int
) -> Any:
    """Return a Llama configuration for training from scratch, with an MLP width of 8/3 `width` and
    tied embeddings.

    `end`, `pad`: ids of the end-of-turn and the padding token.
    """
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=-(-8 * width // 3 // 32) * 32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        eos_token_id=end,
        bos_token_id=None,
        pad_token_id=pad,
    )


def new_actor(config: Any, seed: int) -> Any:
    """Create an actor with random weights."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def load_actor(folder: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load an actor from a Hugging Face folder or name."""
    from transformers import AutoModelForCausalLM

    quiet_libraries()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")


def new_critic(actor: Any, from_actor: bool = True) -> Any:
    """Create a critic with a copy of the actor's backbone and a value head of zeros.

    `from_actor` False: the backbone has random weights. Raises RecordError if transformers has no
    token classification for the actor's family.
    """
    from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, AutoModelForTokenClassification

    config = type(actor.config).from_dict(actor.config.to_dict())
    if type(config) not in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        raise RecordError(
            f"transformers has no token classification for {config.model_type}, so this policy can "
            "have no critic: RFT works, value and PPO do not"
        )
    config.num_labels = 1
    for dropout in ("classifier_dropout", "hidden_dropout", "attention_dropout"):
        setattr(config, dropout, 0.0)
    # These weights are replaced below, but initializing billions of them on a CPU takes long.
    with actor.device if from_actor else nullcontext():
        critic = AutoModelForTokenClassification.from_config(config, attn_implementation="sdpa")
    critic.to(actor.dtype)
    if from_actor:
        critic.base_model.load_state_dict(actor.base_model.state_dict())
    for parameter in value_head(critic).parameters():
        torch.nn.init.zeros_(parameter)
    return critic.to(actor.device)


def load_critic(folder: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load a critic from a Hugging Face folder. Raises RecordError if the folder's model is not a
    critic."""
    from transformers import AutoModelForTokenClassification

    quiet_libraries()
    check_critic(folder)
    return AutoModelForTokenClassification.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa"
    )


def check_critic(folder: str | Path) -> None:
    """Raise RecordError if the folder's model is not a critic. Loaded as a critic, it would get a
    random head."""
    from transformers import AutoConfig

    kinds = AutoConfig.from_pretrained(folder).architectures or ["nothing"]
    if not kinds[0].endswith("ForTokenClassification"):
        raise RecordError(
            f"{folder}: not a critic but {kinds[0]}; create one with cuagent train value"
        )


def positions_of(model: Any) -> int | None:
    """Return the model's context length in tokens; None if its configuration does not state it."""
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(found) if found else None


def save_model(model: Any, folder: Path, weights: dict[str, Any] | None = None) -> None:
    """Save the model as a Hugging Face folder with safetensors weights. `weights`: state dict to
    save; None: the model's own.

    All processes must call it; the first one writes.
    """
    quiet_libraries()
    weights = weights or full_state_dict(model)
    if parallel.rank() == 0:
        model.save_pretrained(folder, state_dict=weights)
    parallel.barrier()


def quiet_libraries() -> None:
    """Hide progress bars and the hub client's warnings about each retry."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    logging.disable_progress_bar()
    hub.set_verbosity_error()


def value_head(critic: Any) -> torch.nn.Module:
    """Return the critic's value head: its only linear layer outside the backbone. Raises ValueError
    if there is not exactly one."""
    outside = [m for name, m in critic.named_children() if name != critic.base_model_prefix]
    linear = [m for m in outside if isinstance(m, torch.nn.Linear)]
    if len(linear) != 1:
        raise ValueError(f"{type(critic).__name__}: expected one linear head, found {len(linear)}")
    return linear[0]


def of_actions(actor: Any, batch: Batch, of_hidden: OfHidden, of_logits: OfLogits) -> Tensor:
    """Return numbers of the N action tokens, [N, k] in the order of `batch.drawn`.

    The head skips other positions: in an episode with much tool output they would take most of its
    time and memory. `of_hidden` is called with the head and the hidden states [N, width] that
    predict the tokens `ids` [N]; it bounds the memory of the logits. `of_logits` is called instead
    with all logits [N, V] if the head cannot be called alone.
    """
    head, ids = actor.get_output_embeddings(), batch.ids.flatten()[batch.drawn]
    drawn = batch.drawn if batch.packing is None else batch.packing.drawn
    if not has_plain_head(actor):
        return of_logits(_all_logits(actor, head, batch, drawn), ids)
    before = head.__dict__.get("forward")

    def picked(hidden: Tensor) -> Tensor:
        return of_hidden(head, hidden.flatten(0, 1).index_select(0, drawn - 1), ids)

    head.forward = picked  # called by the model's forward, within its dtype and hooks
    try:
        return outputs(actor, batch)
    finally:
        if before is None:
            del head.forward
        else:
            head.forward = before


def outputs(model: Any, batch: Batch) -> Tensor:
    """Return the outputs of the model's head for all tokens, [B, L, ...], or [1, T, ...] for a
    packed batch.

    Padded rows need no attention mask: models are causal and padding is on the right, so no real
    token attends to padding, and attention without a mask is faster.
    """
    if batch.packing is not None:
        return model(**arguments(batch.packing)).logits
    return model(input_ids=batch.ids, use_cache=False).logits


def has_plain_head(actor: Any) -> bool:
    """Return True if the head can be called alone, on chunks of hidden states, to compute the
    logits.

    False for model families that scale or cap the outputs after the head, for sharded models, which
    gather the head's weights only within their own forward pass, and for heads with adapters.
    """
    config, head = actor.config.get_text_config(), actor.get_output_embeddings()
    plain = type(head) is torch.nn.Linear and not is_sharded(actor)
    return plain and not any(getattr(config, name, None) for name in AFTER_HEAD)


def _all_logits(actor: Any, head: Any, batch: Batch, drawn: Tensor) -> Tensor:
    """Return the logits that predict the N action tokens in one tensor, [N, V]."""

    def pick(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0].flatten(0, 1)[drawn - 1],)

    hook = head.register_forward_pre_hook(pick)
    try:
        return outputs(actor, batch)
    finally:
        hook.remove()


def values(critic: Any, batch: Batch) -> Tensor:
    """Return the critic's values, [B, L] fp32. Index t has the value of the state before token t;
    index 0 is 0."""
    out = outputs(critic, batch)[..., 0].float()
    if (packing := batch.packing) is not None:
        padded = out.new_zeros(batch.ids.numel())
        out = padded.index_copy(0, packing.slots, out[0]).view_as(batch.ids)
    return torch.nn.functional.pad(out[:, :-1], (1, 0))


def device_microbatches(batch: Batch, budget: int, model: Any) -> Iterator[tuple[Tensor, Batch]]:
    """Yield (row indices, microbatch on the model's device) for this process's share of the batch.

    `budget`: tokens per microbatch. The processes of a sharded model must make the same number of
    passes. A process with too few microbatches adds one with the first token of row 0, which is
    never an action and so adds nothing to any sum.
    """
    packed, lengths = packs(model), batch.real.sum(1)
    groups = packed_microbatches(lengths, budget) if packed else list(microbatches(lengths, budget))
    # Copy all microbatches first: a later copy would wait for the running kernels.
    own = parallel.local_share(groups)
    yield from [(rows, take(batch, rows, packs=packed).to(model.device)) for rows in own]
    if is_sharded(model) and parallel.rank() >= len(groups) % parallel.size() > 0:
        yield FIRST_ROW, take(batch, FIRST_ROW, width=1, packs=packed).to(model.device)


@torch.no_grad()
def per_token(
    model: Any,
    batch: Batch,
    budget: int,
    compute: Callable[[Any, Batch], Tensor],
    channels: int = 1,
) -> Tensor:
    """Return `compute(model, microbatch)` for all microbatches, joined to one tensor [B, L] on the
    CPU of every process.

    `compute` returns [b, l] for a microbatch. With `channels` > 1 it returns [channels, b, l], and
    the result is [channels, B, L]. `budget`: tokens per microbatch.
    """
    shape = batch.ids.shape if channels == 1 else (channels, *batch.ids.shape)
    out = torch.zeros(shape)
    for rows, part in device_microbatches(batch, budget, model):
        found = compute(model, part).float().cpu()
        out[..., rows, : found.shape[-1]] += found
    return parallel.sum_tensor(out)


def logprobs_of(actor: Any, batch: Batch) -> Tensor:
    """Return the log-probabilities of the action tokens, [B, L] fp32; 0 at other tokens."""

    def of_hidden(head: Any, hidden: Tensor, ids: Tensor) -> Tensor:
        return token_logprobs_of(head, hidden, ids)[:, None]

    def of_logits(logits: Tensor, ids: Tensor) -> Tensor:
        return token_logprobs(logits, ids)[:, None]

    return scatter_tokens(of_actions(actor, batch, of_hidden, of_logits)[:, 0], batch)


@torch.no_grad()
def logprobs_and_entropy(actor: Any, batch: Batch) -> Tensor:
    """Return the log-probabilities (index 0) and the entropies (index 1) at the action tokens, from
    one pass without gradients, [2, B, L] fp32."""

    def of_logits(logits: Tensor, ids: Tensor) -> Tensor:
        return torch.stack([token_logprobs(logits, ids), token_entropy(logits)], 1)

    def of_hidden(head: Any, hidden: Tensor, ids: Tensor) -> Tensor:
        parts = spans(len(ids), 2 * head.out_features)  # the entropy needs a second array
        return torch.cat([of_logits(logits_of(head, hidden[p]), ids[p]) for p in parts])

    found = of_actions(actor, batch, of_hidden, of_logits)
    return torch.stack([scatter_tokens(found[:, k], batch) for k in range(2)])


def scatter_tokens(x: Tensor, batch: Batch) -> Tensor:
    """Return x [N], one number per action token, as a tensor [B, L] with the numbers at the tokens'
    positions and 0 elsewhere."""
    return x.new_zeros(batch.ids.numel()).index_copy(0, batch.drawn, x).view_as(batch.ids)


def count_parameters(model: Any) -> int:
    """Return the number of trainable parameters of a model."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
