"""Compute block-diagonal causal attention: several rows are packed into one, and each attends to
itself only.

transformers itself uses a mask [T, T] for T packed tokens, which costs time and memory for the many
pairs of different rows. Here the rows are computed separately: on a GPU in half precision by one
variable-length kernel of torch, otherwise by one call per row.
Not covered: the layout of packed rows (`data/packing.py`); models with a recurrent state (Mamba,
linear attention), which `can_pack` detects.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor

NAME = "cuagent_packed"
"""Name under which transformers finds this attention. Without packed rows it computes the same as
`sdpa`."""
TOLERANCE = 0.15
"""Largest relative difference of outputs that `can_pack` and `why_not_cached` accept, as a share of
the outputs' norm.

Rounding in bfloat16 causes 2 % in 28 layers of width 1,024 and more in wider ones. An error of one
token in the attention causes 20 % or more, in deep models 100 % (random weights).
"""


def register() -> None:
    """Add this attention and its mask to transformers' registries; repeated calls do nothing."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def use_packing(model: Any) -> bool:
    """Switch the model's attention to packed rows; return False if the model does not support
    packed rows.

    In that case the model keeps its attention and trains on padded rows.
    """
    register()
    if model.config.get_text_config()._attn_implementation != "sdpa":
        return False
    model.set_attn_implementation(NAME)
    if can_pack(model):
        return True
    model.set_attn_implementation("sdpa")
    return False


def packs(model: Any) -> bool:
    """Return True if this model's attention supports packed rows, so that training packs its
    rows."""
    return bool(model.config.get_text_config()._attn_implementation == NAME)


@torch.no_grad()
def can_pack(model: Any) -> bool:
    """Return True if the model computes the same hidden states for two rows packed together as for
    each row alone."""
    from cuagent.training.data.packing import pack

    most = model.get_input_embeddings().num_embeddings
    ids = (torch.arange(24).view(2, 12) * 7919 + 3) % most
    real = torch.ones(2, 12, dtype=torch.bool)
    real[0, 8:] = False
    packing = pack(ids, real, torch.tensor([1])).to(model.device)
    was_training = model.training
    model.eval()
    try:
        alone = [ids[0, :8], ids[1]]
        apart = [
            model(
                input_ids=row[None].to(model.device), use_cache=False, output_hidden_states=True
            ).hidden_states[-1]
            for row in alone
        ]
        together = model(**arguments(packing), output_hidden_states=True).hidden_states[-1]
    except (TypeError, ValueError, RuntimeError):  # a family that refuses these arguments
        return False
    finally:
        model.train(was_training)
    return distance(together, torch.cat(apart, 1)) <= TOLERANCE


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return the norm of `found - wanted` divided by the norm of `wanted`."""
    wanted = wanted.float()
    return float((found.float() - wanted).norm() / wanted.norm())


def arguments(packing: Any) -> dict[str, Any]:
    """Return the arguments of a model's forward pass over the packed rows `packing`."""
    # transformers passes on a mask of four dimensions unchanged, and builds no mask [T, T].
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=packing.ids.device)
    return {
        "input_ids": packing.ids,
        "position_ids": packing.positions,
        "attention_mask": unused,
        "use_cache": False,
        "packed_starts": packing.starts,
        "packed_lengths": packing.lengths,
    }


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_starts: Tensor | None = None,
    packed_lengths: tuple[int, ...] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return (attention, None). If `packed_lengths` is given, each packed row attends to itself
    only.

    `query` [b, H, T, D], `key` and `value` [b, G, T, D], attention [b, T, H, D]: the interface of
    transformers. `packed_starts` and `packed_lengths`: see `Packing`; None for padded rows.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if packed_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise ValueError("packed rows support neither capped scores nor attention sinks")
    window = kwargs.get("sliding_window")
    assert packed_starts is not None
    if has_varlen(query) and not kwargs.get("dropout"):
        scale = kwargs.get("scaling")
        return varlen(query, key, value, packed_starts, max(packed_lengths), scale, window), None
    # `split` has a backward pass of one copy; that of slices would fill the whole row for each row.
    out = []
    for q, k, v in zip(*(x.split(packed_lengths, 2) for x in (query, key, value)), strict=True):
        length = q.shape[2]
        mask = band(length, window, query.device) if window and length > window else None
        out.append(sdpa_attention_forward(module, q, k, v, mask, **kwargs)[0])
    return torch.cat(out, 1), None


def band(length: int, window: int, device: torch.device) -> Tensor:
    """Return the mask of causal attention limited to the last `window` tokens, [1, 1, length,
    length] bool."""
    back = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return ((back >= 0) & (back < window))[None, None]


def has_varlen(query: Tensor) -> bool:
    """Return True if torch's variable-length flash-attention kernel supports this query: on a GPU,
    in half precision."""
    if query.device.type != "cuda" or query.shape[-1] > 256 or query.shape[-1] % 8:
        return False
    half = torch.is_autocast_enabled("cuda") or query.dtype in (torch.bfloat16, torch.float16)
    return half and torch.cuda.get_device_capability(query.device) >= (8, 0) and _can_scale()


def _can_scale() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10
        return False
    return {"scale", "window_size"} <= set(signature(varlen_attn).parameters)


def varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    longest: int,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Return the attention of all packed rows, computed by one variable-length kernel; shapes as in
    `attend`.

    `starts` [rows + 1]: see `Packing`. `longest`: number of tokens of the longest row. `window`:
    number of last tokens that each token attends to; None: all.
    """
    from torch.nn.attention.varlen import varlen_attn

    heads = query.shape[1]
    if torch.is_autocast_enabled("cuda"):  # autocast does not know this operator
        low = torch.get_autocast_dtype("cuda")
        query, key, value = query.to(low), key.to(low), value.to(low)
    grouped: dict[str, Any] = {}
    if key.shape[1] != heads:
        if "enable_gqa" in signature(varlen_attn).parameters:  # after torch 2.11
            grouped = {"enable_gqa": True}
        else:
            key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    back = (window - 1 if window else -1, 0)
    found = varlen_attn(
        q, k, v, starts, starts, longest, longest, scale=scale, window_size=back, **grouped
    )
    assert isinstance(found, Tensor)
    return found[None]
