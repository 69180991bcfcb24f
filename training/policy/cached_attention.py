"""Compute attention over the keys and values of earlier tokens, which stay in memory between
forward passes.

A pass computes the new tokens of several conversations, laid one after the other in one row. In
every layer, each conversation owns a range of one long tensor of keys and one of values. The pass
writes the new keys and values there, and its queries attend to the whole range up to themselves. So
nothing is computed twice or padded. On a GPU in half precision one kernel of torch computes all
conversations without copying keys or values; otherwise each conversation is computed by a separate
call.
Not covered: which tokens a pass computes (`engines/cached.py`); models with a recurrent state
(Mamba, linear attention), which `why_not_cached` detects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cuagent.training.policy.packed_attention import TOLERANCE, distance

NAME = "cuagent_cached"
"""Name under which transformers finds this attention. Without cached keys it computes the same as
`sdpa`."""


class KeyValues:
    """Memory for the keys and values of `tokens` tokens, in all layers of a model."""

    def __init__(self, model: Any, tokens: int, dtype: torch.dtype, flash: bool) -> None:
        config = model.config.get_text_config()
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.flash = flash
        """True to use torch's kernel for all conversations at once."""
        one = torch.empty(0, dtype=dtype, device=model.device)
        # One tensor [tokens, heads, width] for each layer.
        layers = range(int(config.num_hidden_layers))
        self.keys = [one.new_empty(tokens, heads, width) for _ in layers]
        self.values = [one.new_empty(tokens, heads, width) for _ in layers]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of `length` tokens from index `source` to index `target`."""
        for part in (*self.keys, *self.values):
            part[target : target + length] = part[source : source + length]


@dataclass(frozen=True)
class Piece:
    """New tokens of one conversation that a forward pass computes."""

    ids: Sequence[int]
    start: int
    """Index in `KeyValues` of the conversation's first token."""
    past: int
    """Number of the conversation's tokens whose keys and values are already in memory."""

    @property
    def length(self) -> int:
        """Number of the conversation's tokens after the pass."""
        return self.past + len(self.ids)


@dataclass(frozen=True)
class Pass:
    """Description of a forward pass over T new tokens of B conversations; its tensors are on the
    model's device."""

    memory: KeyValues
    pieces: tuple[Piece, ...]
    """The new tokens of each conversation on the host; empty if one kernel computes the attention
    (`KeyValues.flash`)."""
    longest_new: int
    """Number of new tokens of the conversation with the most new tokens."""
    longest: int
    """Number of tokens of the longest conversation after the pass, or an upper bound of it."""
    write: Tensor
    """[T] int64: index in the cache's memory at which each new token's keys and values are written.
    """
    query_starts: Tensor
    """[B + 1] int32: index of each conversation's first new token in the pass; the last entry is
    T."""
    key_starts: Tensor
    """[B + 1] int32: index in `memory` of each conversation's first token; the last entry is
    unused."""
    key_lengths: Tensor
    """[B] int32: number of tokens of each conversation after the pass."""


def register() -> None:
    """Add this attention and its mask to transformers' registries; repeated calls do nothing."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def arguments(memory: KeyValues, pieces: Sequence[Piece], device: Any) -> dict[str, Any]:
    """Return the arguments of a model's forward pass over the new tokens `pieces` of B
    conversations.

    The pass returns logits [1, B, V], those of each conversation's last token.
    """
    ids = [i for piece in pieces for i in piece.ids]
    positions = [at for p in pieces for at in range(p.past, p.length)]
    write = [p.start + at for p in pieces for at in range(p.past, p.length)]
    long = torch.tensor([ids, positions, write]).to(device)
    ends = torch.tensor([len(p.ids) for p in pieces]).cumsum(0)
    short = torch.zeros(3, len(pieces) + 1, dtype=torch.int32)
    short[0, 1:] = ends
    short[1, :-1] = torch.tensor([p.start for p in pieces])
    short[2, :-1] = torch.tensor([p.length for p in pieces])
    short = short.to(device)
    # transformers passes on a mask of four dimensions unchanged, and builds no mask of its own.
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    return {
        "input_ids": long[:1],
        "position_ids": long[1:2],
        "attention_mask": unused,
        "use_cache": False,
        "logits_to_keep": (ends - 1).to(device),
        "cached": Pass(
            memory,
            tuple(pieces),
            max(len(p.ids) for p in pieces),
            max(p.length for p in pieces),
            long[2],
            short[0],
            short[1],
            short[2, :-1],
        ),
    }


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    cached: Pass | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return (attention, None). If `cached` is given, each conversation attends to its own cached
    and new tokens only.

    `query` [b, H, T, D], `key` and `value` [b, G, T, D], attention [b, T, H, D]: the interface of
    transformers.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if cached is None:
        found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return found, None
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise ValueError("cached rows support neither capped scores nor attention sinks")
    keys = cached.memory.keys[module.layer_idx]
    values = cached.memory.values[module.layer_idx]
    keys.index_copy_(0, cached.write, key[0].transpose(0, 1).to(keys.dtype))
    values.index_copy_(0, cached.write, value[0].transpose(0, 1).to(keys.dtype))
    query, window = query.to(keys.dtype), kwargs.get("sliding_window")
    if cached.memory.flash:
        return flash(query, keys, values, cached, kwargs.get("scaling"), window)[None], None
    out, at = [], 0
    for piece in cached.pieces:
        new, span = len(piece.ids), slice(piece.start, piece.start + piece.length)
        k, v = (x[span].transpose(0, 1)[None] for x in (keys, values))
        mask = seen(new, piece.length, window, query.device)
        part, _ = sdpa_attention_forward(module, query[:, :, at : at + new], k, v, mask, **kwargs)
        out.append(part)
        at += new
    return torch.cat(out, 1), None


def seen(new: int, length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Return the attention mask of the last `new` of `length` tokens, [1, 1, new, length] bool;
    None if torch's built-in causal mask suffices.

    `window`: number of last tokens that a token attends to; None: all.
    """
    if (not window or length <= window) and new in (1, length):
        return None
    at = torch.arange(length - new, length, device=device)[:, None]
    back = at - torch.arange(length, device=device)
    return ((back >= 0) & (back < (window or length)))[None, None]


def flash(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    cached: Pass,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Return the attention of all conversations, [T, H, D], computed by one flash-attention kernel;
    other shapes as in `attend`.

    It calls torch's internal operator, because `torch.nn.attention.varlen` lacks the argument for
    the used length of each key range.
    """
    options: dict[str, Any] = {"scale": scale, "seqused_k": cached.key_lengths}
    if window:
        options |= {"window_size_left": window - 1, "window_size_right": 0}
    found = torch.ops.aten._flash_attention_forward(
        query[0].transpose(0, 1).contiguous(),
        keys,
        values,
        cached.query_starts,
        cached.key_starts,
        cached.longest_new,
        cached.longest,
        0.0,
        not window,  # causal, aligned at the last token
        False,
        **options,
    )
    return found[0]


def may_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if the device and the type allow torch's flash-attention kernel. `why_not_cached`
    tests the kernel itself."""
    half = dtype in (torch.bfloat16, torch.float16)
    return device.type == "cuda" and half and torch.cuda.get_device_capability(device) >= (8, 0)


@torch.no_grad()
def why_not_cached(model: Any, dtype: torch.dtype, flash: bool) -> str | None:
    """Return a reason if the model's logits differ between one pass and several passes with cached
    keys; None if they agree.

    The test computes two conversations in three passes; the last one has one new token of each. The
    model's attention must be `NAME`. `flash`: see `KeyValues`.
    """
    most = model.get_input_embeddings().num_embeddings
    ids = ((torch.arange(40).view(2, 20) * 7919 + 3) % most).tolist()
    ids[1] = ids[1][:14]
    try:
        memory = KeyValues(model, 64, dtype, flash)
        wanted = [
            model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits[0]
            for row in ids
        ]
        past = [0, 0]
        for left in (5, 1, 0):  # tokens that the pass leaves out at the end
            ends = [len(row) - left for row in ids]
            pieces = [
                Piece(row[at:end], start, at)
                for start, row, at, end in zip((32, 1), ids, past, ends, strict=True)
            ]
            found = model(**arguments(memory, pieces, model.device)).logits[0]
            for got, want, end in zip(found, wanted, ends, strict=True):
                if not (apart := distance(got, want[end - 1])) <= TOLERANCE:
                    return f"logits differ by {apart:.0%} from those of a single pass"
            past = ends
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        # A family or a version of torch that refuses these arguments.
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None
