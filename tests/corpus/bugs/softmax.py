"""Bugs in softmax, log-sum-exp, cross-entropy and attention."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "softmax_online",
        "sum * std::exp(top - larger) + std::exp(row[k] - larger)",
        "sum + std::exp(row[k] - larger)",
        "the sum is not rescaled when the maximum grows",
    ),
    Bug(
        "softmax_online",
        "row[k] > top ? row[k] : top",
        "row[k] < top ? row[k] : top",
        "a minimum instead of the maximum",
    ),
    Bug(
        "softmax_online",
        "float top = -INFINITY, sum = 0;",
        "float top = 0, sum = 0;",
        "the maximum starts at zero, which gives NaN for a row far below zero",
    ),
    Bug(
        "softmax_online",
        "for (long k = 0; k < width; ++k) y",
        "for (long k = 0; k < width - 1; ++k) y",
        "the last column is never written",
    ),
    Bug(
        "softmax_online",
        "std::exp(row[k] - top) / sum",
        "std::exp(row[k] - top) / (sum + 1e-3f)",
        "an epsilon in the denominator, as in other norms",
    ),
    Bug(
        "softmax_three_passes",
        "x.amax(-1, keepdim=True)",
        "x.amax()",
        "one maximum for all rows instead of one per row",
    ),
    Bug(
        "softmax_three_passes",
        "e.sum(-1, keepdim=True)",
        "e.sum(0, keepdim=True)",
        "normalised over the wrong axis",
    ),
    Bug(
        "softmax_three_passes",
        "x.amax(-1, keepdim=True)",
        "x.amax(-1, keepdim=True).half()",
        "the maximum is converted to half precision and is infinite above 65504",
    ),
    Bug(
        "softmax_clamped",
        "clamp(min=-87)",
        "clamp(min=-10)",
        "exponents are clamped at values that matter",
    ),
    Bug("softmax_base_two", "1.4426950408889634", "1.4427", "a constant with too few digits"),
    Bug("softmax_polynomial", "1.6666665459e-1f", "1.5e-1f", "a wrong coefficient"),
    Bug(
        "softmax_polynomial",
        "p = p * r + 8.3334519073e-3f;",
        "",
        "one term of the polynomial is missing",
    ),
    Bug(
        "softmax_polynomial",
        "+ 127) << 23",
        "+ 126) << 23",
        "every exponential is halved",
        equivalent=(
            "the factor is in the numerator and in the sum, and powers of two cancel exactly"
        ),
    ),
    Bug(
        "softmax_polynomial",
        "2.12194440e-4f",
        "2.1e-4f",
        "a second part of ln 2 with too few digits",
    ),
    Bug(
        "softmax_flushed",
        "torch.finfo(y.dtype).tiny",
        "1e-4",
        "flushes small results, not only subnormal ones",
    ),
    Bug("attention_plain", "triu(1)", "triu(2)", "a query sees one future key"),
    Bug(
        "attention_plain",
        "triu(1)",
        "triu(0)",
        "a query does not see itself, so the first row has no key",
    ),
    Bug("attention_plain", "** -0.5", "** -0.25", "a wrong scale"),
    Bug("attention_plain", 'float("-inf")', "-10.0", "a mask that leaks for small scores"),
    Bug("attention_online", "j <= i", "j < i", "a query does not see itself"),
    Bug("attention_online", "top = -INFINITY", "top = 0", "the running maximum starts at zero"),
    Bug("attention_online", "top = -INFINITY", "top = -1e4f", "the running maximum starts at -1e4"),
    Bug("attention_online", "total * old + now", "total + now", "the sum is not rescaled"),
    Bug("attention_online", "sum[d] * old + now", "sum[d] + now", "the values are not rescaled"),
    Bug(
        "attention_online",
        "v[(h * length + j) * width + d]",
        "v[j * width + d]",
        "the values of the first head are used for all heads",
    ),
    Bug(
        "attention_in_blocks",
        "result * old + weights",
        "result + weights",
        "earlier blocks are not rescaled",
    ),
    Bug(
        "attention_in_blocks",
        "places[:, None] < places[None, block]",
        "places[:, None] <= places[None, block]",
        "a query does not see itself",
    ),
    Bug(
        "attention_in_blocks",
        "range(0, length, 4)",
        "range(0, length - 4, 4)",
        "the last block is omitted",
    ),
    Bug("cross_entropy_gathered", ".mean()", ".sum() / 11", "divided by the number of classes"),
    Bug("cross_entropy_shifted", "/ len(target)", "/ (len(target) - 1)", "divides by one less"),
    Bug("cross_entropy_kernel", "+ top - row", "- row", "the maximum is not added again"),
    Bug(
        "cross_entropy_kernel", "row[target[i]]", "row[target[0]]", "one class is used for all rows"
    ),
    Bug(
        "cross_entropy_kernel",
        "c < classes; ++c",
        "c < classes - 1; ++c",
        "the sum omits the last class",
    ),
    Bug(
        "logsumexp_chunks",
        "parts[1:]",
        "parts[1:-1]",
        "the last chunk, of one element, is omitted",
    ),
    Bug(
        "logsumexp_kernel",
        "sum * std::exp(top - value) + 1",
        "sum * std::exp(top - value)",
        "the term of a new maximum is not added",
    ),
    Bug(
        "logsumexp_shifted",
        "x.amax",
        "x[..., :-1].amax",
        "the maximum ignores the last element, which overflows",
    ),
    Bug(
        "logsumexp_shifted",
        "return top + ",
        "return x[:, 0] * 0 + top.max() + ",
        "subtracts the largest maximum of all rows",
    ),
    Bug(
        "rotary_kernel",
        "out[d + half] = row[d + half] * c + row[d] * s;",
        "out[d + half] = row[d + half] * c - row[d] * s;",
        "a reflection instead of a rotation",
    ),
    Bug(
        "rotary_kernel",
        "cosine[t * half + d]",
        "cosine[d * half + t]",
        "a table is read transposed; lengths and widths are close",
    ),
    Bug("rotary_kernel", "9.210340371976184", "9.21", "the logarithm of the base has two digits"),
    Bug(
        "rotary_kernel",
        "row[d] * c - row[d + half] * s",
        "row[2 * d] * c - row[2 * d + 1] * s",
        "pairs neighbours instead of halves",
    ),
    Bug(
        "grouped_attention_online",
        "i + keys - queries + 1",
        "i + 1",
        "the triangle of the mask starts at the other corner",
    ),
    Bug(
        "grouped_attention_online",
        "h % heads / (heads / groups)",
        "h % groups",
        "heads are assigned to keys in another order",
    ),
    Bug(
        "grouped_attention_online",
        "sums[c] *= shrink",
        "sums[c] *= 1",
        "the sums keep the scale of an older maximum",
    ),
    Bug(
        "grouped_attention_online",
        "std::min(first + TILE, end);",
        "i == queries - 1 && first == 2 * TILE ? first : std::min(first + TILE, end);",
        "omits the last tile of the last query",
    ),
    Bug("causal_library", "is_causal=True", "is_causal=False", "the mask is omitted"),
    Bug("causal_skipped", "seen = i + 1", "seen = max(i, 1)", "each element ignores itself"),
    Bug(
        "causal_skipped",
        "scores.amax(-1, keepdim=True)",
        "scores.amax()",
        "one maximum is used for all rows",
    ),
    Bug(
        "causal_skipped",
        "scores.amax(-1, keepdim=True)",
        "scores.amax(-1, keepdim=True).clamp(min=0)",
        "the maximum starts at zero",
    ),
    Bug(
        "channel_softmax_kernel",
        "float most = -INFINITY",
        "float most = 0",
        "the maximum of the product's results starts at zero",
    ),
    Bug(
        "probabilities_by_logarithms",
        "p.log().clamp(min=-100)",
        "(p + 1e-8).log()",
        "a certain error costs 18 instead of 100",
    ),
)
