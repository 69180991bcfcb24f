"""Train low-rank adapters (LoRA, arXiv 2106.09685): few weights are trained, the rest is frozen.

RFT, value pretraining and PPO can use them for models whose full training would not fit (16 bytes
per trained weight). The adapters are those of `peft`, which is imported only if they are enabled.
Actor and critic may share one frozen backbone: only the adapters and the critic's head are then
separate. For N frozen weights in bf16 this saves 2 N bytes (15.2 GB for 7.6 billion) and changes no
result.
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

SEED = 0
"""Seed of the adapters' first weights."""


@dataclass(frozen=True)
class Lora:
    rank: int = 0
    """Rank of the adapters; 0 trains all weights."""
    alpha: int = 32
    """Scale of the adapter: its output is multiplied by alpha / rank."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the linear layers that get adapters; `all-linear`: all but the head."""
    shared: bool = False
    """True if actor and critic share one frozen backbone in PPO. The critic then continues to train
    the adapter of value pretraining. If False, this adapter is merged into the critic, and a new
    one is trained."""

    def __post_init__(self) -> None:
        at_least(0, self, "rank", "alpha")
        if self.shared and not self.rank:
            raise ConfigError("lora.shared needs lora.rank: without adapters all weights differ")


def adapt(model: Any, lora: Lora) -> Any:
    """Return the model with adapters; only the adapters, and a critic's head, are then trained.

    A model that has adapters already, or any model if `lora.rank` is 0, is returned unchanged. The
    random start of the adapters depends on `SEED` alone, so that all processes, and a stage that
    another process resumes, start alike. Raises ConfigError if peft is missing or the model has no
    layer of `lora.targets`.
    """
    if lora.rank == 0 or is_adapted(model):
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
        lora_dropout=0.0,  # PPO's ratios compare two passes; dropout would change them
    )
    gpus = [model.device] if model.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(gpus):
            torch.manual_seed(SEED)
            return get_peft_model(model, settings)
    except ValueError as error:
        raise ConfigError(f"lora.targets={lora.targets!r}: {error}") from error


def is_adapted(model: Any) -> bool:
    return hasattr(model, "merge_and_unload")


def merged(model: Any, adapter: Path) -> Any:
    """Write the adapter to the folder `adapter`, and return the model with the adapter merged in.

    `model` cannot be used afterwards. A model without an adapter is returned unchanged.
    """
    if not is_adapted(model):
        return model
    if parallel.rank() == 0:
        model.save_pretrained(adapter)
    return model.merge_and_unload()


def adapter_folder(model: Path) -> Path:
    """Return the folder of a finished model's adapter, given the folder of the merged model."""
    return model.with_name(f"{model.name}-adapter")


def load_adapter(model: Any, folder: Path) -> None:
    """Load the trained weights of an adapter, and of a critic's head, into an adapted model.

    Raises ConfigError if the folder has no adapter, or one with other settings.
    """
    from peft import PeftConfig, load_peft_weights, set_peft_model_state_dict

    if not (folder / "adapter_config.json").exists():
        raise ConfigError(
            f"{folder}: no adapter; lora.shared needs a critic that cuagent train value trained "
            "with lora.rank"
        )
    ours, theirs = model.peft_config["default"], PeftConfig.from_pretrained(str(folder))
    for name in ("r", "lora_alpha", "target_modules"):
        if getattr(ours, name) != getattr(theirs, name):
            raise ConfigError(
                f"{folder}: the adapter has {name}={getattr(theirs, name)}, the settings "
                f"{getattr(ours, name)}"
            )
    set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"))


def share_backbone(critic: Any, actor: Any) -> int:
    """Replace the adapted critic's frozen weights by the actor's; return the saved memory in bytes.

    Raises ConfigError if the frozen weights of critic and actor differ.
    """
    frozen = {name: p for name, p in actor.named_parameters() if not p.requires_grad}
    saved = 0
    for name, own in list(critic.named_parameters()):
        if own.requires_grad or name not in frozen:
            continue
        if not torch.equal(own, frozen[name]):
            raise ConfigError("lora.shared: the critic was trained on another policy's backbone")
        _put(critic, name, frozen[name])
        saved += own.nbytes
    return saved


def own_backbone(critic: Any, actor: Any) -> None:
    """Copy the weights that the critic shares with the actor, so that merging one adapter leaves
    the other model unchanged. Move the critic to the CPU."""
    shared = {id(p) for p in actor.parameters()}
    for name, p in list(critic.named_parameters()):
        if id(p) in shared:
            copied = p.detach().to("cpu", copy=True)
            _put(critic, name, torch.nn.Parameter(copied, requires_grad=False))
    critic.to("cpu")


def _put(model: Any, name: str, parameter: torch.nn.Parameter) -> None:
    """Replace one parameter of a model, given its full name."""
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, parameter)


@contextmanager
def merged_for_now(model: Any) -> Iterator[None]:
    """Merge the adapter into the frozen weights inside this context, and restore the weights
    afterwards.

    The old weights are copied back. Subtracting the adapter instead would leave rounding errors,
    which add up over the iterations.
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
    """Return the weights of a model with a merged adapter, under the parameter names of the model
    without an adapter."""
    return {
        name.replace(".base_layer", ""): tensor
        for name, tensor in model.get_base_model().state_dict().items()
        if "lora_" not in name
    }
