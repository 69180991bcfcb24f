"""Train low-rank adapters (LoRA, arXiv 2106.09685): few weights are trained, the rest is frozen.

RFT, value pretraining and PPO use them for models whose optimizer would not fit (16 bytes per
trained number). The adapters are those of `peft`, which is imported only if they are enabled.
Not covered: adapters on sharded models.
Invariant: a stage saves a complete model with the adapter merged into it, and the adapter
separately.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from cuagent.training import parallel
from cuagent.training.config import ConfigError, at_least


@dataclass(frozen=True)
class Lora:
    rank: int = 0
    """Rank of the adapters; 0 trains all weights."""
    alpha: int = 32
    """The adapter's output is scaled by alpha / rank."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of linear layers; `all-linear` means all but the head."""

    def __post_init__(self) -> None:
        at_least(0, self, "rank", "alpha")


def adapt(model: Any, lora: Lora) -> Any:
    """Return the model with adapters; only these, and a critic's head, are trained.

    Raises ConfigError if peft is missing or the model has no such layers.
    """
    if lora.rank == 0:
        return model
    if find_spec("peft") is None:
        raise ConfigError("lora.rank needs peft; pip install 'cuagent[train-lora]'")
    from peft import LoraConfig, get_peft_model

    critic = type(model).__name__.endswith("ForTokenClassification")
    settings = LoraConfig(
        task_type="TOKEN_CLS" if critic else "CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=lora.targets if isinstance(lora.targets, str) else list(lora.targets),
        exclude_modules=["score", "classifier"] if critic else None,  # the head is trained fully
        lora_dropout=0.0,  # the ratios of PPO compare two passes of the same weights
    )
    try:
        return get_peft_model(model, settings)
    except ValueError as error:
        raise ConfigError(f"lora.targets={lora.targets!r}: {error}") from error


def is_adapted(model: Any) -> bool:
    return hasattr(model, "merge_and_unload")


def merged(model: Any, adapter: Path) -> Any:
    """Write the adapter to the folder `adapter`, and return the model with the adapter merged in.

    The adapted model cannot be used afterwards.
    """
    if not is_adapted(model):
        return model
    if parallel.rank() == 0:
        model.save_pretrained(adapter)
    return model.merge_and_unload()


@contextmanager
def merged_for_now(model: Any) -> Iterator[None]:
    """Add the adapter to the frozen weights inside this context, and restore them afterwards.

    The weights are kept and copied back: subtracting the adapter again would leave rounding, which
    adds up over the iterations.
    """
    layers = [m for m in model.modules() if hasattr(m, "merge") and hasattr(m, "base_layer")]
    before = [layer.base_layer.weight.detach().clone() for layer in layers]
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
        with torch.no_grad():
            for layer, weight in zip(layers, before, strict=True):
                layer.base_layer.weight.copy_(weight)


def plain_state_dict(model: Any) -> dict[str, Any]:
    """Return the weights of a merged model by the names that they have without an adapter."""
    return {
        name.replace(".base_layer", ""): tensor
        for name, tensor in model.get_base_model().state_dict().items()
        if "lora_" not in name
    }
