"""Report the state of the installation for training: versions, devices, a policy's chat template.

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
    "tensorboard": "TensorBoard files next to metrics.jsonl",
    "verl": "export-verl; install it in a separate environment",
}


def examine(policy: Path | None) -> Iterator[str]:
    """Yield one line of text for each check of the installation. Raises RecordError if the policy
    cannot be trained."""
    import torch

    yield f"python {platform.python_version()}, torch {torch.__version__}"
    for name, use in PACKAGES.items():
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} not installed; needed for {use}"
    yield from devices()
    if policy is not None:
        yield from trainable(policy)


def devices() -> Iterator[str]:
    """Yield lines of text about the GPUs and the NCCL library."""
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
        available = dist.is_nccl_available()
        nccl = "available" if available else "not available: torchrun cannot use the GPUs"
        yield f"NCCL {nccl}"


def trainable(policy: Path) -> Iterator[str]:
    """Yield lines of text about the policy: its chat template, and the memory that its training
    needs."""
    from cuagent.training.policy.folder import load_policy
    from cuagent.training.settings import TrainConfig

    chat, actor = load_policy(policy, TrainConfig())
    yield f"{policy}: chat template OK, {chat.form} tool calls; tokenizer {chat.fingerprint}"
    numbers = sum(p.numel() for p in actor.parameters())
    yield (
        f"{numbers / 1e6:,.1f} million weights: {16 * numbers / 2**30:.1f} GiB with gradients and "
        "AdamW in fp32, the same again for the critic, plus activations"
    )
