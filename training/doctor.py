"""What is here for training, and what is missing: versions, devices, a policy's template.

Not covered: compilers and isolation, which `cuagent doctor` examines.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = {
    "transformers": "models and tokenizers: cuagent[train]",
    "tokenizers": "cuagent[train]",
    "safetensors": "cuagent[train]",
    "peft": "LoRA (lora.rank): cuagent[train-lora]",
    "ray": "judges on other machines (play.ray): cuagent[train-ray]",
    "pyarrow": "parquet (export, export-verl)",
    "tensorboard": "TensorBoard files beside metrics.jsonl",
    "verl": "export-verl's; in its own environment",
}


def examine(policy: Path | None) -> Iterator[str]:
    """One line for each thing. Raises RecordError where the policy cannot be trained."""
    import torch

    yield f"python {platform.python_version()}, torch {torch.__version__}"
    for name, use in PACKAGES.items():
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} missing, for {use}"
    yield from devices()
    if policy is not None:
        yield from trainable(policy)


def devices() -> Iterator[str]:
    """GPUs, and whether processes can talk to each other about them."""
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count()
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        yield f"GPU {index}: {properties.name}, {properties.total_memory >> 30} GiB, {bf16}"
    if not count:
        yield "no CUDA device: the demo runs on the CPU"
    elif count > 1:
        nccl = "here" if dist.is_nccl_available() else "missing: torchrun cannot use the GPUs"
        yield f"NCCL {nccl}"


def trainable(policy: Path) -> Iterator[str]:
    """Whether its template appends, and what its training would hold in memory."""
    from cuagent.training.stages import TrainConfig, load_policy

    chat, actor = load_policy(policy, TrainConfig())
    yield f"{policy}: its chat template appends; tokenizer {chat.fingerprint}"
    numbers = sum(p.numel() for p in actor.parameters())
    yield (
        f"{numbers / 1e6:,.1f} million weights: {16 * numbers / 2**30:.1f} GiB with gradients and "
        "AdamW in fp32, as much again for the critic, activations beside that"
    )
