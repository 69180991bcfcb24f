"""List all operator templates (`Seed`) by family, including those that cannot be derived from
torch's schemas.

Each listed entry is the shape form of the main argument and the text of the call. Placeholders
(`templates.py`):

    {x}                     the main argument
    {c} {d} {l} ...         a size of the form
    {width} {kernel} {dim}  a drawn number
    {weight[c, width]}      a new parameter; {input[...]}, {like}: a new input or an earlier value
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from cuagent.synth.seeds import Domain, Seed, from_torch

FAMILIES = {
    "elementwise": 9.0,
    "activations": 7.0,
    "reductions": 5.0,
    "extremes": 5.0,
    "scans": 5.0,
    "softmax": 3.0,
    "normalisations": 8.0,
    "products": 10.0,
    "attention": 4.0,
    "convolutions": 18.0,
    "pooling": 14.0,
    "resampling": 5.0,
    "views": 8.0,
    "gathers": 6.0,
    "losses": 10.0,
    "recurrent": 1.5,
    "scatters": 3.0,
    "blocks": 3.0,
    "loops": 3.0,
}
"""Default weight of each operator family in the random choice of an operator. A convolution or a
pooling fits fewer shapes than an elementwise operator, so its weight is higher."""

# The mean of a loss over many independent numbers hardly depends on labels or signs, so a kernel
# that ignores them would pass. Such losses have reduction='none'.
LISTED: dict[str, tuple[tuple[str, str], ...]] = {
    "elementwise": (
        ("...", "torch.clamp({x}, min=-{number}, max={number})"),
        ("...", "torch.mul({x}, {like})"),
        ("...", "torch.sub({x}, {like})"),
        ("...", "torch.div({x}, {positive[...]})"),
        ("...", "torch.where({mask[...]}, {x}, {like})"),
        ("...", "torch.lerp({x}, {like}, {number})"),
        ("...", "torch.addcmul({x}, {like}, {input[...]}, value={number})"),
        ("...", "torch.addcdiv({x}, {like}, {positive[...]}, value={number})"),
        ("... d", "torch.mul({x}, {weight[d]})"),
        ("... d", "torch.add({x}, {bias[d]})"),
        ("n c h w", "torch.mul({x}, {weight[c, 1, 1]})"),
        ("...", "torch.masked_fill({x}, {mask[...]}, {number})"),
        ("...", "torch.pow({x}, {power})"),
    ),
    "activations": (
        ("...", "F.gelu({x}, approximate='tanh')"),
        ("...", "F.leaky_relu({x}, negative_slope={number})"),
        ("...", "F.elu({x}, alpha={number})"),
        ("...", "F.softplus({x}, beta=2)"),
        ("...", "F.hardtanh({x}, min_val=-{number}, max_val={number})"),
        ("... d", "F.glu({x}, dim=-1)"),
    ),
    "reductions": (
        ("... d", "torch.linalg.vector_norm({x}, dim={dim}, keepdim={flag})"),
        ("... d", "F.cosine_similarity({x}, {like}, dim=-1)"),
        ("... d", "F.pairwise_distance({x}, {like})"),
        ("... d", "torch.trapezoid({x}, dim={dim})"),
        ("...", "torch.var_mean({x}, dim={dim}, keepdim=True)[0]"),
    ),
    "extremes": (
        ("... d", "torch.topk({x}, {few}, dim={dim})[0]"),
        ("... d", "torch.sort({x}, dim={dim}, descending={flag})[0]"),
        ("... d", "torch.kthvalue({x}, {few}, dim={dim})[0]"),
        ("... d", "torch.aminmax({x}, dim={dim}, keepdim=True)[1]"),
        # Of long rows, so that sorting them is not the only way.
        ("n c h w", "torch.topk(torch.flatten({x}, 1), 9, dim=1)[0]"),
        ("n c h w", "torch.topk(torch.flatten({x}, 1), 9, dim=1, largest=False)[0]"),
        ("n c l d", "torch.topk(torch.flatten({x}, 1), 12, dim=1)[0]"),
        ("n c s h w", "torch.topk(torch.flatten({x}, 1), 16, dim=1)[0]"),
    ),
    "scans": (
        ("...", "torch.flip(torch.cumsum({x}, dim={dim}), dims=[{dim}])"),
        ("... d", "torch.diff({x}, dim={dim})"),
        ("... d", "torch.cumulative_trapezoid({x}, dim={dim})"),
    ),
    "softmax": (
        ("...", "nn.Softmax(dim={dim})"),
        ("...", "nn.Softmin(dim={dim})"),
        ("...", "nn.LogSoftmax(dim={dim})"),
        ("n c h w", "nn.Softmax2d()"),
    ),
    "normalisations": (
        ("n c l", "nn.GroupNorm({groups}, {c})"),
        # With the default factor of 1e-4 the layer hardly changes numbers near 1.
        ("n c h w", "nn.LocalResponseNorm({odd}, alpha=1.0)"),
        ("... d", "F.normalize({x}, dim={dim})"),
        ("... d", "F.layer_norm({x}, ({d},), weight={weight[d]})"),
        ("... d", "F.rms_norm({x}, ({d},), weight={weight[d]})"),
    ),
    "products": (
        ("... d", "nn.Linear({d}, {width})"),
        ("... d", "nn.Linear({d}, {width}, bias=False)"),
        ("... d", "torch.matmul({x}, {weight[d, width]})"),
        ("n d", "torch.mm({x}, {weight[d, width]})"),
        ("n d", "torch.addmm({bias[width]}, {x}, {weight[d, width]})"),
        ("... d", "F.linear({x}, {weight[width, d]}, {bias[width]})"),
        ("n l d", "torch.bmm({x}, {input[n, d, width]})"),
        ("n l d", "torch.baddbmm({bias[l, width]}, {x}, {input[n, d, width]})"),
        ("n l d", "torch.einsum('nld,kd->nlk', {x}, {weight[width, d]})"),
        ("n c l d", "torch.einsum('ncld,cdk->nclk', {x}, {weight[c, d, width]})"),
        # torch copies an operand of these, because the letters of the batch are not adjacent.
        ("n l c d", "torch.einsum('nlcd,nlcs->ncds', {x}, {input[n, l, c, small]})"),
        ("n l c d", "torch.einsum('nlcd,nscd->ncls', {x}, {input[n, small, c, d]})"),
        ("n c l d", "torch.einsum('ncld,nlcs->ncds', {x}, {input[n, l, c, small]})"),
        ("n d", "nn.Bilinear({d}, {d}, {small})|$({x}, {like})"),
        ("... d", "torch.mv(torch.flatten({x}, 0, -2), {weight[d]})"),
        ("n l d", "torch.matmul({x}, torch.transpose({like}, 1, 2))"),
    ),
    "attention": (
        (
            "n l d",
            "F.scaled_dot_product_attention({x}, {input[n, l, d]}, {input[n, l, d]})",
        ),
        (
            "n c l d",
            "F.scaled_dot_product_attention({x}, {input[n, c, l, d]}, {input[n, c, l, d]}, "
            "is_causal=True)",
        ),
        ("n l d", "nn.MultiheadAttention({d}, {heads}, batch_first=True)|$({x}, {x}, {x})[0]"),
        (
            "n l d",
            "nn.TransformerEncoderLayer({d}, {heads}, {width}, dropout=0.0, batch_first=True)",
        ),
    ),
    "convolutions": (
        ("n c h w", "nn.Conv2d({c}, {c}, 3, padding=1, groups={c})"),
        ("n c l", "nn.Conv1d({c}, {c}, {odd}, padding={padding}, groups={c})"),
        ("n c h w", "nn.Conv2d({c}, {width}, 3, padding=2, dilation=2)"),
        ("n c h w", "nn.Conv2d({c}, {width}, 1)"),
        ("n c h w", "F.conv2d({x}, {weight[width, c, 3, 3]}, padding=1)"),
        ("n c l", "F.conv1d({x}, {weight[width, c, 3]}, {bias[width]}, stride={stride})"),
        ("n c h w", "nn.Unfold({kernel})"),
    ),
    "pooling": (
        ("n c h w", "F.max_pool2d({x}, {kernel}, stride={stride})"),
        ("n c h w", "F.avg_pool2d({x}, {kernel}, stride=1, padding=0, count_include_pad=False)"),
        ("n c l", "F.adaptive_avg_pool1d({x}, {output})"),
    ),
    "resampling": (
        ("n c h w", "nn.Upsample(scale_factor=2, mode='nearest')"),
        ("n c h w", "nn.Upsample(scale_factor=2, mode='bilinear')"),
        ("n c h w", "nn.Upsample(scale_factor=2, mode='bicubic', align_corners=True)"),
        ("n c l", "nn.Upsample(scale_factor=2, mode='linear')"),
        ("n c s h w", "nn.Upsample(scale_factor=2, mode='trilinear')"),
        ("n c h w", "F.interpolate({x}, size=({output}, {output}), mode='bilinear')"),
        ("n c h w", "F.interpolate({x}, scale_factor=0.5, mode='area')"),
        ("n c h w", "F.grid_sample({x}, {unit[n, h, w, 2]}, align_corners=False)"),
    ),
    "views": (
        ("n c l", "torch.transpose({x}, 1, 2)"),
        ("n c h w", "torch.permute({x}, (0, 2, 3, 1))"),
        ("n c h w", "torch.flatten({x}, 2)"),
        ("... d", "torch.flip({x}, dims=[{dim}])"),
        ("... d", "torch.roll({x}, {few}, dims={dim})"),
        ("... d", "torch.cat([{x}, {like}], dim={dim})"),
        ("...", "torch.stack([{x}, {like}], dim=1)"),
        ("... l d", "torch.tril({x})"),
        ("... l d", "torch.triu({x}, diagonal=1)"),
        ("... d", "torch.narrow({x}, {dim}, 1, {part})"),
        ("... d", "torch.repeat_interleave({x}, 2, dim={dim})"),
        ("... d", "torch.chunk({x}, 2, dim={dim})[1]"),
        ("... d", "F.pad({x}, (1, 2))"),
        ("n c h w", "F.pad({x}, (1, 1, 1, 1), mode='reflect')"),
        ("n c l d", "torch.diagonal({x}, dim1=2, dim2=3)"),
        ("... d", "torch.unflatten({x}, -1, (2, -1))"),
        ("... d", "torch.movedim({x}, -1, 1)"),
        ("... d", "torch.tile({x}, (2,))"),
        ("... d", "torch.diag_embed({x})"),
    ),
    "gathers": (
        ("... d", "torch.gather({x}, -1, {index[...; d]})"),
        ("... d", "torch.index_select({x}, -1, {index[part; d]})"),
        ("... d", "torch.take_along_dim({x}, {index[...; d]}, dim=-1)"),
        ("... d", "torch.scatter_add({x}, -1, {index[...; d]}, {like})"),
        ("... d", "torch.index_add({x}, -1, {index[d; d]}, {like})"),
        ("n d", "torch.add({x}, F.embedding({index[n; vocabulary]}, {weight[vocabulary, d]}))"),
    ),
    "scatters": (
        ("n d", "torch.index_add({weight[vocabulary, d]}, 0, {index[n; vocabulary]}, {x})"),
        (
            "n d",
            "torch.index_put({weight[vocabulary, d]}, ({index[n; vocabulary]},), {x}, "
            "accumulate=True)",
        ),
        (
            "n d",
            "torch.scatter_add({weight[vocabulary, d]}, 0, {index[n, d; vocabulary]}, {x})",
        ),
        (
            "n d",
            "torch.index_reduce({weight[vocabulary, d]}, 0, {index[n; vocabulary]}, {x}, 'amax')",
        ),
        (
            "n d",
            "torch.index_reduce({weight[vocabulary, d]}, 0, {index[n; vocabulary]}, {x}, 'amin')",
        ),
        ("n l d", "torch.index_add({weight[small, l, d]}, 0, {index[n; small]}, {x})"),
    ),
    "losses": (
        ("...", "F.mse_loss({x}, {scaled[...]})"),
        ("...", "F.mse_loss({x}, {like}, reduction='none')"),
        ("...", "nn.L1Loss()|$({x}, {scaled[...]})"),
        ("...", "nn.SmoothL1Loss(beta={number})|$({x}, {scaled[...]})"),
        ("...", "nn.HuberLoss(delta={number})|$({x}, {scaled[...]})"),
        ("...", "nn.HuberLoss(reduction='none')|$({x}, {like})"),
        ("...", "nn.SoftMarginLoss(reduction='none')|$({x}, {signs[...]})"),
        ("...", "F.binary_cross_entropy_with_logits({x}, {unit[...]}, reduction='none')"),
        ("...", "nn.PoissonNLLLoss(reduction='none')|$({x}, {positive[...]})"),
        ("...", "F.hinge_embedding_loss({x}, {signs[...]}, reduction='none')"),
        ("n d", "F.cross_entropy({x}, {index[n; d]}, reduction='none')"),
        ("n d", "nn.CrossEntropyLoss(label_smoothing=0.1, reduction='none')|$({x}, {index[n; d]})"),
        ("n d", "F.nll_loss(F.log_softmax({x}, dim=1), {index[n; d]}, reduction='none')"),
        ("n d", "F.kl_div(F.log_softmax({x}, dim=1), {unit[n, d]}, reduction='none')"),
        ("n d", "F.kl_div({x}, {unit[n, d]}, reduction='none')"),
        ("n d", "F.multi_margin_loss({x}, {index[n; d]}, reduction='none')"),
        (
            "n d",
            "F.triplet_margin_loss({x}, {input[n, d]}, {input[n, d]}, margin=2.0, "
            "reduction='none')",
        ),
        ("n d", "F.cosine_embedding_loss({x}, {input[n, d]}, {signs[n]}, reduction='none')"),
        (
            "n d",
            "F.margin_ranking_loss({x}, {like}, {signs[n, d]}, margin={number}, reduction='none')",
        ),
        ("n c h w", "F.cross_entropy({x}, {index[n, h, w; c]}, reduction='none')"),
    ),
    "recurrent": (
        ("n l d", "nn.GRU({d}, {small}, batch_first=True)|$({x})[0]"),
        ("n l d", "nn.LSTM({d}, {small}, batch_first=True)|$({x})[0]"),
        ("n l d", "nn.RNN({d}, {small}, batch_first=True)|$({x})[0]"),
        ("n d", "nn.GRUCell({d}, {small})|$({x}, {input[n, small]})"),
    ),
}
"""Shape form and call text of each handwritten operator template, by family. For a module, `|`
separates its constructor from its call."""

ON_INTEGERS = (
    ("n l", "nn.Embedding({vocabulary}, {width})"),
    ("n l", "F.embedding({x}, {weight[vocabulary, width]})"),
    ("n l", "nn.EmbeddingBag({vocabulary}, {width}, mode='sum')"),
    ("n l", "nn.EmbeddingBag({vocabulary}, {width}, mode='mean')"),
)
"""Shape form and text of operator templates whose main argument contains indices below the
vocabulary's size."""

ON_OTHER_DOMAINS = (
    ("losses", "...", "nn.BCELoss()|$({x}, {unit[...]})", Domain.UNIT),
    ("elementwise", "...", "torch.xlogy({x}, {positive[...]})", Domain.POSITIVE),
    ("elementwise", "...", "torch.pow({x}, {number})", Domain.POSITIVE),
)


@cache
def catalogue() -> dict[str, tuple[Seed, ...]]:
    """Return all operator templates by family, in a fixed order."""
    found: dict[str, list[Seed]] = {family: [] for family in FAMILIES}
    for seed in (*from_torch(), *_listed()):
        found[seed.family].append(seed)
    return {family: tuple(sorted(s, key=lambda x: (x.text, x.form))) for family, s in found.items()}


def _listed() -> Iterator[Seed]:
    for family, lines in LISTED.items():
        for form, text in lines:
            yield _seed(family, form, text)
    for form, text in ON_INTEGERS:
        yield _seed("gathers", form, text, integers=True)
    for family, form, text, domain in ON_OTHER_DOMAINS:
        yield _seed(family, form, text, domain=domain)


def _seed(
    family: str, form: str, text: str, domain: Domain = Domain.ANY, integers: bool = False
) -> Seed:
    made, _, call = text.partition("|")
    return Seed(family, form, made, call or "$({x})", domain, integers)
