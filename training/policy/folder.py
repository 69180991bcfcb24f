"""Load a policy from a Hugging Face folder, check episodes against its limits, prepare it for
training, and save it.

Not covered: creating models (`model.py`); checkpoints for resuming (`checkpoint.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from cuagent.training import parallel
from cuagent.training.config import ConfigError
from cuagent.training.data.segments import Episode, RecordError
from cuagent.training.files import atomic_folder, digest_of
from cuagent.training.policy.chat import Chat, load_chat
from cuagent.training.policy.lora import (
    adapt,
    adapter_folder,
    is_adapted,
    merged,
    merged_for_now,
    plain_state_dict,
)
from cuagent.training.policy.model import (
    load_actor,
    quiet_libraries,
    save_model,
)
from cuagent.training.policy.placement import place
from cuagent.training.settings import TrainConfig


def load_policy(folder: Path, config: TrainConfig) -> tuple[Chat, Any]:
    """Load tokenizer and actor from a Hugging Face folder; the actor is on the CPU. Raises
    RecordError."""
    with policy_errors(folder):
        return load_chat(folder), load_actor(folder, config.dtype.torch)


@contextmanager
def policy_errors(folder: Path) -> Iterator[None]:
    """Convert errors about a Hugging Face folder or name, raised inside this context, to a
    RecordError of one line."""
    absent = not folder.exists()
    if absent and (len(folder.parts) != 2 or folder.parent.exists()):
        # It cannot be a hub name OWNER/NAME; the hub's few one-word models have no chat template.
        raise RecordError(f"{folder}: no such folder")
    quiet_libraries()
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(": ")
        also = "no such folder, and " if absent else ""
        raise RecordError(f"{folder}: {also}not a Hugging Face model ({reason})") from error


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


def prepare_model(model: Any, config: TrainConfig, device: str) -> Any:
    """Return the model with adapters, placed on its devices, ready for training. Raises
    ConfigError."""
    if config.lora.rank and config.placement.sharded:
        raise ConfigError("lora.rank and placement.sharded cannot be combined: unset one of them")
    return place(adapt(model, config.lora), config.placement, device)


def save_served(actor: Any, folder: Path, chat: Chat) -> None:
    """Save the actor's current weights for a server.

    An adapter is merged into the weights only while they are saved.
    """
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
    """Save a finished model atomically, with its adapter merged into the weights; save the adapter
    next to it."""
    first = parallel.rank() == 0
    plain = merged(model, adapter_folder(folder))
    with atomic_folder(folder) if first else nullcontext(folder) as partial:
        save_model(plain, partial)
        if chat is not None and first:
            chat.save(partial)
    parallel.barrier()


def digest_of_model(model: Any) -> str:
    """Return a hash (16 hex digits) of the first 256 numbers of each weight tensor.

    These numbers suffice to distinguish models, because training changes them.
    """
    return digest_of(
        name.encode() + tensor.flatten()[:256].float().numpy().tobytes()
        for name, tensor in model.state_dict().items()
    )


def digest_of_policy(actor: Any, chat: Chat) -> str:
    return digest_of([digest_of_model(actor).encode(), chat.fingerprint.encode()])
