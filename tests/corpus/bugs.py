"""Seeded bugs: honest candidates with one piece of their text replaced, as data.

Each is wrong for one reason, which it names. Those that are equivalent to the original say why:
they must be accepted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """`find` must stand exactly once in the files of the honest candidate `of`."""

    of: str
    find: str
    put: str
    wrong: str
    equivalent: str = ""
    """Why it is no bug, on the shapes and values that the task declares."""


BUGS: tuple[Bug, ...] = (
    Bug(
        "linear_naive",
        "for (long i = 0; i < rows; ++i)",
        "for (long i = 1; i < rows; ++i)",
        "the first row is never written",
    ),
    Bug("linear_naive", "k < width; ++k", "k < width - 1; ++k", "the last product is left out"),
    Bug("linear_naive", "float sum = b[j];", "float sum = 0;", "no bias"),
    Bug(
        "linear_naive",
        "w[j * width + k]",
        "w[k * out + j]",
        "the weight is read as if it were transposed",
    ),
    Bug(
        "linear_naive",
        "sum > 0 ? sum : 0",
        "sum > 1e-3f ? sum : 0",
        "the ReLU cuts off a little too high",
    ),
    Bug(
        "linear_naive",
        "#pragma omp parallel for",
        "static float sum;\n#pragma omp parallel for",
        "a variable that is not used: the inner one hides it",
        equivalent=("the declaration inside the loops hides the static one, which nobody reads"),
    ),
    Bug("linear_naive", "float sum = b[j];", "_Float16 sum = b[j];", "sums in half precision"),
    Bug("linear_naive", "y[i * out + j]", "y[j * rows + i]", "the output is written transposed"),
    Bug(
        "linear_tiles",
        "std::min(top + TILE, rows)",
        "top + TILE - (top + TILE > rows)",
        "the bottom of a tile is only right where rows are a multiple of the tile",
        equivalent=(
            "the task has 32 rows, a multiple of 8, so that the condition never holds; "
            "the shapes are declared"
        ),
    ),
    Bug(
        "linear_tiles",
        "for (long start = 0; start < width; start += BLOCK)",
        "for (long start = 0; start + BLOCK < width; start += BLOCK)",
        "the last block of the sum is left out",
    ),
    Bug(
        "linear_tiles",
        "float part = 0;",
        "static float part = 0;",
        "the partial sum is shared by threads and never reset",
    ),
    Bug(
        "linear_tiles",
        "total[i - top][j - left] += part;",
        "total[i - top][j - left] = part;",
        "blocks overwrite each other",
    ),
    Bug(
        "linear_tiles",
        "total[i - top][j - left] + b[j], 0.0f",
        "total[i - top][j - left] + b[i], 0.0f",
        "the bias of the row, not the column",
    ),
    Bug(
        "linear_tiles",
        "left < out; left += TILE",
        "left < out - TILE; left += TILE",
        "the last tile of columns is never written",
    ),
    Bug(
        "linear_tiles",
        "TILE = 8, BLOCK = 16",
        "TILE = 8, BLOCK = 24",
        "a block that does not divide the sum",
        equivalent=(
            "the end of each block is clamped to the width, so all products are added; "
            "only their order differs"
        ),
    ),
    Bug(
        "linear_kahan",
        "lost = (next - sum) - term;",
        "lost = term - (next - sum);",
        "the compensation has the wrong sign",
        equivalent=(
            "only the extra accuracy is lost: what is left errs like a plain fp32 sum, "
            "which the task admits"
        ),
    ),
    Bug(
        "linear_kahan",
        "- lost;",
        "+ lost;",
        "the compensation is added instead of taken off",
        equivalent=(
            "only the extra accuracy is lost: what is left errs like a plain fp32 sum, "
            "which the task admits"
        ),
    ),
    Bug(
        "linear_kahan",
        "sum = next;",
        "sum = next - lost;",
        "the compensation is applied twice",
        equivalent=(
            "only the extra accuracy is lost: what is left errs like a plain fp32 sum, "
            "which the task admits"
        ),
    ),
    Bug(
        "linear_kahan",
        "k < width; ++k",
        "k < width; k += 1 + (k == 7)",
        "the ninth product is left out",
    ),
    Bug(
        "linear_kahan",
        "sum < 0 ? 0 : sum",
        "sum < 0 ? -sum : sum",
        "an absolute value instead of a ReLU",
    ),
    Bug(
        "linear_packed",
        "if self.version != weight._version:",
        "if self.version is None:",
        "packs once and never again, though weights may be loaded anew",
    ),
    Bug(
        "linear_packed",
        "weight.t().contiguous(), weight._version",
        "weight.t().contiguous().bfloat16().float(), weight._version",
        "packed in bfloat16",
    ),
    Bug(
        "linear_packed",
        ".add_(self.linear.bias)",
        ".sub_(self.linear.bias)",
        "the bias is taken off",
    ),
    Bug(
        "linear_in_parts",
        "self.linear.bias.expand(x.shape[0], -1).clone()",
        "self.linear.bias.expand(x.shape[0], -1).clone() * 1.0001",
        "the bias is 0.01 % too large",
    ),
    Bug(
        "linear_in_parts",
        "reversed(list(parts))",
        "reversed(list(parts)[1:])",
        "one part is left out",
    ),
    Bug(
        "linear_in_parts",
        "torch.where(total > 0, total, 0)",
        "torch.where(total > 0, total, total * 1e-3)",
        "a leak in the ReLU",
    ),
    Bug(
        "linear_two_threads",
        "half = x.shape[0] // 2",
        "half = x.shape[0] // 2 - 1",
        "uneven halves",
        equivalent="both halves use the same limit, so that every row is computed",
    ),
    Bug(
        "linear_two_threads",
        "slice(half, None)",
        "slice(half + 1, None)",
        "one row is never written",
    ),
    Bug(
        "wide_sequential",
        "sum += x[i * width + k] * w[j * width + k]",
        "sum += x[i * width + k] * w[(j * width + k) & ~1L]",
        "every second weight is read twice",
    ),
    Bug(
        "wide_sequential",
        "k < width; ++k",
        "k < width; k += 1 + (k == 5)",
        "one of 16384 products is left out",
    ),
    Bug(
        "wide_split",
        "while len(parts) > 1:",
        "while len(parts) > 2:",
        "the last two partial sums are not added",
    ),
    Bug(
        "wide_split",
        "parts[::2] + parts[1::2]",
        "parts[::2] + parts[::2]",
        "half of the partial sums twice",
    ),
    Bug(
        "wide_double",
        "self.linear.weight.double().t()",
        "self.linear.weight.half().double().t()",
        "the weight passes through half precision",
    ),
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
        "the maximum starts at zero: NaN for a row far below zero",
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
        "the maximum of all rows instead of each",
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
        "the maximum passes through half precision",
        equivalent="any number may be taken off that is near the maximum; it divides out",
    ),
    Bug(
        "softmax_clamped",
        "clamp(min=-87)",
        "clamp(min=-10)",
        "exponents clamped where they still count",
    ),
    Bug("softmax_base_two", "1.4426950408889634", "1.4427", "a short constant"),
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
        "half of every exponential",
        equivalent=(
            "the factor stands in the numerator and in the sum, and powers of two divide "
            "out exactly"
        ),
    ),
    Bug("softmax_polynomial", "2.12194440e-4f", "2.1e-4f", "a short second part of ln 2"),
    Bug(
        "softmax_flushed",
        "torch.finfo(y.dtype).tiny",
        "1e-4",
        "small results flushed, not only subnormal ones",
    ),
    Bug("layernorm_welford", "delta / (k + 1)", "delta / (k + 2)", "the count is one too large"),
    Bug(
        "layernorm_welford",
        "squares += delta * (row[k] - mean)",
        "squares += delta * delta",
        "the square of the old difference",
    ),
    Bug(
        "layernorm_welford",
        "squares / width + eps",
        "squares / (width - 1) + eps",
        "the unbiased variance",
    ),
    Bug("layernorm_welford", "squares / width + eps", "squares / width", "no epsilon"),
    Bug(
        "layernorm_welford",
        "* scale * weight[k] + bias[k]",
        "* scale * weight[k] + bias[i]",
        "the bias of the row",
    ),
    Bug(
        "layernorm_welford",
        "1 / std::sqrt(squares / width + eps)",
        "1 / (std::sqrt(squares / width) + eps)",
        "the epsilon outside the root",
    ),
    Bug("layernorm_two_passes", "self.norm.eps", "1e-6", "another epsilon"),
    Bug(
        "layernorm_two_passes",
        "centred.square().mean(-1, keepdim=True)",
        "x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()",
        "a one-pass variance",
    ),
    Bug("layernorm_shifted", "mean * mean", "mean", "the mean is not squared"),
    Bug(
        "layernorm_shifted",
        "x - x[:, :1]",
        "x - x[:1, :1]",
        "shifted by one element for all rows: cancellation where rows differ",
    ),
    Bug("layernorm_var_mean", "unbiased=False", "unbiased=True", "the unbiased variance"),
    Bug(
        "batchnorm_folded",
        "self.norm.running_var + self.norm.eps",
        "self.norm.running_var",
        "no epsilon",
    ),
    Bug(
        "batchnorm_folded",
        "- self.norm.running_mean * factor",
        "- self.norm.running_mean",
        "the mean is not scaled",
    ),
    Bug("batchnorm_folded", "self.norm.bias - ", "- ", "no bias"),
    Bug(
        "batchnorm_kernel",
        "/ std::sqrt(var[c] + eps)",
        "* std::sqrt(var[c] + eps)",
        "multiplied by the deviation",
    ),
    Bug(
        "batchnorm_kernel",
        "i < base + area",
        "i < base + area - 1",
        "the last place of each plane is never written",
    ),
    Bug(
        "batchnorm_kernel", "(x[i] - mean[c])", "(x[i] - mean[n])", "the mean of the wrong channel"
    ),
    Bug(
        "batchnorm_kernel",
        "(n * channels + c) * area",
        "(n * channels + n) * area",
        "a wrong plane: written many times and never",
    ),
    Bug(
        "conv2d_im2col",
        "unfold(x, 3, padding=1)",
        "unfold(x, 3, padding=(1, 1))",
        "the padding as a pair",
        equivalent="a pair of equal numbers means the same",
    ),
    Bug(
        "conv2d_im2col",
        "self.conv.weight.flatten(1)",
        "self.conv.weight.transpose(2, 3).flatten(1)",
        "the kernel transposed",
    ),
    Bug(
        "conv2d_im2col",
        "+ self.conv.bias[:, None]",
        "+ self.conv.bias.mean()",
        "one bias for all channels",
    ),
    Bug("conv2d_direct", "col >= width", "col > width", "reads one column into the next row"),
    Bug(
        "conv2d_direct",
        "row < 0 || ",
        "",
        "reads above the first row, which is before the tensor for the first plane",
    ),
    Bug("conv2d_direct", "row >= height", "row >= height - 1", "the last row is left out"),
    Bug("conv2d_direct", "+ u) * 3 + v", "+ v) * 3 + u", "the kernel transposed"),
    Bug(
        "conv2d_direct",
        "for (long v = 0; v < 3; ++v)",
        "for (long v = 0; v < 2; ++v)",
        "one column of the kernel is left out",
    ),
    Bug(
        "conv2d_direct",
        "(n * inside + c) * height",
        "(c * inside + n) * height",
        "batch and channel exchanged: reads past the input",
    ),
    Bug("conv2d_shifts", "(1, 1, 1, 1)", "(1, 1, 0, 2)", "padded below only"),
    Bug("conv2d_shifts", "u : u + height", "0 : height", "no shift in one direction"),
    Bug(
        "conv2d_channels_last",
        "permute(0, 3, 1, 2)",
        "permute(0, 3, 2, 1).transpose(2, 3).flip(3)",
        "the last axis reversed",
    ),
    Bug(
        "pooling_reshaped",
        "stride=2, padding=1",
        "stride=2, padding=0",
        "no padding: fewer results",
    ),
    Bug(
        "pooling_kernel",
        "sum / 9",
        "sum / ((std::min(height, 2 * i + 2) - std::max(0L, 2 * i - 1)) * 3)",
        "padding is not counted at one edge",
    ),
    Bug(
        "pooling_kernel",
        "std::min(width, 2 * j + 2)",
        "std::min(width, 2 * j + 1)",
        "one column of each window is left out",
    ),
    Bug(
        "pooling_kernel",
        "std::max(at[width], at[width + 1])",
        "at[width]",
        "one of four elements is left out",
    ),
    Bug("pooling_kernel", "std::max(0L, 2 * i - 1)", "2 * i", "the row above is left out"),
    Bug("attention_plain", "triu(1)", "triu(2)", "sees one key of the future"),
    Bug(
        "attention_plain",
        "triu(1)",
        "triu(0)",
        "does not see itself: no key at all in the first row",
    ),
    Bug("attention_plain", "** -0.5", "** -0.25", "a wrong scale"),
    Bug("attention_plain", 'float("-inf")', "-10.0", "a mask that leaks where scores are small"),
    Bug("attention_online", "j <= i", "j < i", "does not see itself"),
    Bug("attention_online", "total * old + now", "total + now", "the sum is not rescaled"),
    Bug("attention_online", "sum[d] * old + now", "sum[d] + now", "the values are not rescaled"),
    Bug(
        "attention_online",
        "v[(h * length + j) * width + d]",
        "v[j * width + d]",
        "the values of the first head for all",
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
        "does not see itself",
    ),
    Bug(
        "attention_in_blocks",
        "range(0, length, 4)",
        "range(0, length - 4, 4)",
        "the last block is left out",
    ),
    Bug(
        "gru_steps",
        "new + update * (h - new)",
        "h + update * (new - h)",
        "the update gate reversed",
    ),
    Bug("gru_steps", "torch.sigmoid(reset + r) * n", "n", "no reset gate"),
    Bug(
        "gru_kernel",
        "(1 - z) * candidate + z * h[j]",
        "z * candidate + (1 - z) * h[j]",
        "the update gate reversed",
    ),
    Bug("gru_kernel", "+ r * b[2 * hidden + j]", "+ b[2 * hidden + j]", "no reset gate"),
    Bug(
        "gru_kernel",
        "std::vector<float> h(hidden, 0.0f)",
        "std::vector<float> h(hidden, 1e-3f)",
        "the state starts at 0.001",
    ),
    Bug(
        "gru_kernel",
        "h[k] * wh[g * hidden + k]",
        "h[k] * wh[k * hidden + g % hidden]",
        "the recurrent weight transposed",
    ),
    Bug(
        "lstm_gates",
        "torch.sigmoid(f) * c",
        "torch.sigmoid(f + 1) * c",
        "a forget bias that is not there",
    ),
    Bug("lstm_gates", "i, f, g, o", "i, f, o, g", "two gates exchanged"),
    Bug(
        "lstm_kernel",
        "h[n * hidden + j] = out * std::tanh(now)",
        "h[n * hidden + j] = out * now",
        "no tanh on the way out",
    ),
    Bug("lstm_kernel", "at[2 * hidden]", "at[3 * hidden]", "one gate twice"),
    Bug("embedding_rows", "/ index.shape[1]", "/ index.shape[0]", "divided by the number of bags"),
    Bug(
        "embedding_kernel",
        "j < size; ++j) sum",
        "j < size - 1; ++j) sum",
        "the last row of each bag is left out",
    ),
    Bug(
        "embedding_kernel",
        "index[i * size + j]",
        "index[j * bags + i]",
        "the index read as if it were transposed",
    ),
    Bug("embedding_counts", ".sum(1)\n", ".amax(1)\n", "a row that occurs twice counts once"),
    Bug(
        "segments_kernel",
        "y[s * width + d] += x",
        "y[s * width + d] = x",
        "the last row of a segment instead of the sum",
    ),
    Bug(
        "segments_kernel",
        "for (long i = 0; i < rows; ++i)",
        "for (long i = 0; i < rows - 1; ++i)",
        "the last row is left out",
    ),
    Bug(
        "segments_kernel",
        "for (long d = 0; d < width; ++d) y[s * width + d] = 0;",
        "",
        "sums onto what was there",
    ),
    Bug(
        "segments_scatter",
        "index[:, None].expand_as(values)",
        "index[:, None]",
        "only the first column is added",
    ),
    Bug(
        "cumsum_sequential",
        "float sum = 0;",
        "static float sum = 0;",
        "the sum goes on from row to row and from call to call",
    ),
    Bug(
        "cumsum_sequential",
        "y[i * width + k] = sum += x[i * width + k]",
        "y[i * width + k] = sum, sum += x[i * width + k]",
        "an exclusive sum",
    ),
    Bug(
        "cumsum_blocks",
        "offsets[:, b - 1] + within[:, b - 1, -1]",
        "within[:, b - 1, -1]",
        "only the block before counts",
    ),
    Bug(
        "cumsum_doubling", "y[:, :-step].clone()", "y[:, :-step]", "reads what it has just written"
    ),
    Bug("cumsum_product", ".triu()", ".triu(1)", "an exclusive sum"),
    Bug("cumsum_product", "x @ torch", "x.bfloat16().float() @ torch", "inputs in bfloat16"),
    Bug(
        "ranking_selected",
        "x[i * width + k] > x[i * width + best]",
        "x[i * width + k] >= x[i * width + best]",
        "of equal elements the last",
        equivalent="which of several equal elements stands first is not defined by topk",
    ),
    Bug(
        "ranking_selected",
        "taken[best] = true;",
        "taken[n] = true;",
        "the wrong element is taken out",
    ),
    Bug("ranking_selected", "best < 0 || ", "best < 0 && k == n || ", "starts at the n-th element"),
    Bug(
        "ranking_sorted",
        "values[:, :5], places[:, :5]",
        "values[:, :5], places[:, :5].sort().values",
        "places sorted by themselves",
    ),
    Bug("sorting_insertion", "at > 0 && row", "at > 1 && row", "the first element is never moved"),
    Bug("sorting_insertion", "place[at] = place[at - 1];", "", "places are not moved along"),
    Bug("sorting_argsort", "stable=True", "stable=True, descending=True", "descending"),
    Bug("cross_entropy_gathered", ".mean()", ".sum() / 11", "divided by the number of classes"),
    Bug("cross_entropy_shifted", "/ len(target)", "/ (len(target) - 1)", "divided by one less"),
    Bug("cross_entropy_kernel", "+ top - row", "- row", "the maximum is not put back"),
    Bug("cross_entropy_kernel", "row[target[i]]", "row[target[0]]", "one class for all rows"),
    Bug(
        "cross_entropy_kernel",
        "c < classes; ++c",
        "c < classes - 1; ++c",
        "the last class is left out of the sum",
    ),
    Bug("gelu_erf", "0.7071067811865476", "0.7071", "a short constant"),
    Bug(
        "gelu_erf",
        "torch.erf(x * 0.7071067811865476)",
        "torch.tanh(0.7978845608 * (x + 0.044715 * x**3))",
        "the approximation by tanh",
    ),
    Bug("gelu_kernel", "0.5f * x[i]", "0.5f * std::fabs(x[i])", "the sign is lost"),
    Bug(
        "gelu_kernel",
        "i < n; ++i",
        "i < n / 8 * 8; ++i",
        "no tail: only whole vectors of eight",
        equivalent=("the task has 528 elements, 66 vectors of eight; the shapes are declared"),
    ),
    Bug("gelu_kernel", "i < n; ++i", "i < n / 32 * 32; ++i", "no tail: only whole vectors of 32"),
    Bug(
        "small_exponentials",
        "torch.expm1(-2 * x.abs())",
        "torch.exp(-2 * x.abs()) - 1",
        "cancellation where x is small",
        equivalent=(
            "the error is absolute, one unit in the last place of the largest output, and"
            " the rule is one of absolute errors"
        ),
    ),
    Bug(
        "branchy_reciprocal",
        "torch.where(x == 0, 0, x * torch.rsqrt(x))",
        "torch.where(x <= 0, 0, x * torch.rsqrt(x))",
        "zero for negative inputs instead of NaN",
    ),
    Bug("residual_written_out", "+ self.inner.bias", "", "no bias"),
    Bug("rmsnorm_bf16_once", "+ 1e-6", "+ 1e-2", "a large epsilon"),
    Bug(
        "rmsnorm_bf16_once",
        ".mean(-1, keepdim=True)",
        ".sum(-1, keepdim=True)",
        "a sum where the mean is wanted",
    ),
    Bug("rmsnorm_bf16_twice", "x.shape[-1]", "(x.shape[-1] - 1)", "divided by one less"),
    Bug("matmul_half_kernel", "float sum = 0;", "_Float16 sum = 0;", "sums in half precision"),
    Bug(
        "matmul_half_kernel", "k < inner; ++k", "k < inner - 1; ++k", "the last product is left out"
    ),
    Bug("moments_welford", "s / width", "s / (width - 1)", "the unbiased variance"),
    Bug(
        "moments_welford",
        "t = row[0]",
        "t = 0",
        "the maximum starts at zero",
    ),
    Bug(
        "moments_two_passes",
        "x - mean[:, None]",
        "x - mean.mean()",
        "centred by one mean for all rows",
    ),
    Bug(
        "logsumexp_chunks",
        "parts[1:]",
        "parts[1:-1]",
        "the last chunk, of one element, is left out",
    ),
    Bug(
        "logsumexp_kernel",
        "sum * std::exp(top - value) + 1",
        "sum * std::exp(top - value)",
        "a new maximum does not count itself",
    ),
    Bug(
        "logsumexp_shifted",
        "return top + ",
        "return x[:, 0] * 0 + top.max() + ",
        "the largest maximum of all rows",
    ),
    Bug("permute_kernel", "0.5f * x", "x", "not scaled"),
    Bug(
        "permute_kernel",
        "std::min(j + 4, columns)",
        "j + 4",
        "a tile that reaches past the last column",
    ),
    Bug(
        "permute_view",
        "transpose(1, 2)",
        "reshape(x.shape[0], x.shape[2], x.shape[1])",
        "reshaped instead of transposed",
    ),
    Bug("masks_kernel", "x[k] > y[k]", "x[k] >= y[k]", "equal counts as larger"),
    Bug("masks_kernel", "count[i] = larger;", "count[i] += larger;", "adds to what was there"),
    Bug("masks_arithmetic", "(y + y)", "(y + x)", "a sum of the two instead of twice the one"),
    Bug(
        "distance_kernel",
        "sum += gap * gap",
        "sum += gap * (a[i * width + d] + b[j * width + d])",
        "a difference of squares",
    ),
    Bug("distance_kernel", "b[j * width + d]", "b[i * width + d]", "the wrong point"),
    Bug("distance_rows", "dim=1)", "dim=1, ord=1)", "the sum of absolute differences"),
    Bug(
        "joined_parts",
        "y[: len(a)], y[len(a) :] = a + a, b + b",
        "y[: len(a)], y[len(a) + 1 :] = a + a, (b + b)[1:]",
        "the first row of the second part is never written",
    ),
    Bug(
        "groupnorm_reshaped", "torch.exp(-y)", "torch.exp(-1.702 * y)", "the factor of a fast GELU"
    ),
    Bug(
        "groupnorm_kernel", "g * per + i / area", "g + i / area", "the weight of the wrong channel"
    ),
    Bug(
        "groupnorm_kernel",
        "i < size; ++i) squares",
        "i < area; ++i) squares",
        "squares of the first channel only",
    ),
    Bug(
        "groupnorm_kernel",
        "double sum = 0, squares = 0;",
        "float sum = 0, squares = 0;",
        "sums in fp32",
        equivalent=(
            "sums of 60 terms, centred before squaring: within the error that fp32 implies"
        ),
    ),
    Bug("conv_dilated_direct", "u * DILATION", "u", "rows of the kernel are not dilated"),
    Bug(
        "conv_dilated_direct",
        "s >= width",
        "s > width",
        "a column past the last one is read: the next row's first",
    ),
    Bug(
        "conv_dilated_direct",
        "i * STRIDE - PADDING",
        "i * STRIDE - PADDING + 1",
        "the padding of one axis is one short",
    ),
    Bug(
        "conv_dilated_direct",
        "o / to * from + c",
        "c",
        "every group reads the first group's channels",
    ),
    Bug(
        "conv_dilated_direct",
        "std::min(std::max(sum, 0.0f), 6.0f)",
        "std::max(sum, 0.0f)",
        "a ReLU without its upper end",
    ),
    Bug(
        "conv_dilated_direct",
        "float sum = b[o];",
        "float sum = b[o % to];",
        "the bias of the first group for all groups",
    ),
    Bug("conv2d_fourier", ".flip(-1, -2)", "", "a convolution where a correlation is wanted"),
    Bug(
        "conv2d_fourier",
        "height, width = x.shape[-2] + 2, x.shape[-1] + 2",
        "height, width = x.shape[-2] + 1, x.shape[-1] + 2",
        "one row of padding too few: the last row wraps round into the first",
    ),
    Bug(
        "conv2d_fourier",
        "+ self.conv.bias[:, None, None]",
        "+ self.conv.bias.mean()",
        "one bias for all channels",
    ),
    Bug(
        "conv2d_winograd",
        "[0.5, -0.5, 0.5]",
        "[0.5, 0.5, -0.5]",
        "two entries of a transform exchanged",
    ),
    Bug(
        "conv2d_winograd",
        "1, 2 * columns - width + 1, 1, 2 * rows - height + 1",
        "1, 2 * columns - width + 1, 0, 2 * rows - height + 2",
        "padded at the bottom only",
    ),
    Bug(
        "conv2d_winograd",
        'product = torch.einsum("ncrsab,ocab->norsab", tiles, weight)',
        'product = torch.einsum("ncrsab,ocab->norsab", tiles.half(), weight.half()).float()',
        "products of tiles in half precision",
    ),
    Bug(
        "conv_groupnorm_fused",
        "1 / std::sqrt(squares / seen + eps)",
        "1 / (std::sqrt(squares / seen) + eps)",
        "the epsilon outside the root",
    ),
    Bug(
        "conv_groupnorm_fused",
        "1 / std::sqrt(squares / seen + eps)",
        "1 / std::sqrt((squares + eps) / seen)",
        "the epsilon divided with the sum",
    ),
    Bug(
        "conv_groupnorm_fused",
        "squares / seen + eps",
        "squares / (seen - 1) + eps",
        "the unbiased variance",
    ),
    Bug(
        "conv_groupnorm_fused",
        "float sum = b[o];",
        "float sum = 0;",
        "the convolution's bias is dropped",
    ),
    Bug(
        "conv_groupnorm_fused",
        "squares += delta * (sum - mean);",
        "squares += delta * delta;",
        "Welford's second difference is the first one",
    ),
    Bug(
        "conv_batchnorm_folded",
        "torch.sqrt(norm.running_var + norm.eps)",
        "(torch.sqrt(norm.running_var) + norm.eps)",
        "the epsilon outside the root",
    ),
    Bug(
        "conv_batchnorm_folded",
        "torch.sqrt(norm.running_var + norm.eps)",
        "torch.sqrt(norm.running_var)",
        "no epsilon",
    ),
    Bug(
        "conv_batchnorm_folded",
        "torch.sqrt(norm.running_var + norm.eps)",
        "torch.sqrt(norm.running_var + 1e-6)",
        "another epsilon than the module's",
    ),
    Bug(
        "conv_batchnorm_folded",
        "norm.bias - norm.running_mean * scale",
        "norm.bias - norm.running_mean",
        "the running mean is not scaled",
    ),
    Bug(
        "conv_batchnorm_folded",
        "self.conv.weight * scale[:, None, None, None]",
        "self.conv.weight * norm.weight[:, None, None, None]",
        "the weight is scaled by the gain only",
    ),
    Bug(
        "extremes_blocks",
        "begin < length; begin += BLOCK",
        "begin + BLOCK < length; begin += BLOCK",
        "the last block, which is not full, is left out",
    ),
    Bug(
        "extremes_blocks",
        "const long end = std::min(begin + BLOCK, length);",
        "const long end = std::min(begin + BLOCK, length - 1);",
        "the last of a thousand elements is left out",
    ),
    Bug(
        "extremes_blocks",
        "for (long i = begin; i < end; ++i)",
        "for (long i = begin + (begin == 0); i < end; ++i)",
        "the first of a thousand elements is left out",
    ),
    Bug(
        "extremes_blocks",
        "float high = -INFINITY, low",
        "float high = 0, low",
        "the maximum starts at zero",
    ),
    Bug(
        "extremes_blocks",
        "low = INFINITY",
        "low = 1e4f",
        "the minimum starts at a number that seemed large",
    ),
    Bug(
        "extremes_blocks",
        "high = value, where = i",
        "high = value, where = i - begin",
        "a place within its block instead of the column",
    ),
    Bug(
        "extremes_blocks",
        "float top = -INFINITY;",
        "float top = 1e-30f;",
        "the largest of all starts at the least positive number, as FLT_MIN",
    ),
    Bug(
        "extremes_blocks",
        "value > high",
        "value >= high",
        "of equal elements the last",
        equivalent="every place where the largest stands is a right answer to where it stands",
    ),
    Bug(
        "masked_mean_kernel",
        "seen > 0 ? sum / seen : 0",
        "sum / seen",
        "nothing is said of an empty mask: NaN",
    ),
    Bug(
        "masked_mean_kernel",
        "sum / seen : 0",
        "sum / length : 0",
        "divided by the length, not by the count",
    ),
    Bug(
        "masked_mean_kernel",
        "mask[n * length + t]",
        "mask[t]",
        "the mask of the first sequence for all",
    ),
    Bug(
        "masked_mean_kernel",
        "float sum = 0, seen = 0;",
        "float sum = 0, seen = 1;",
        "the count starts at one",
    ),
    Bug(
        "recurrence_chunks",
        "power[1 : size + 1] * state[:, None]",
        "power[:size] * state[:, None]",
        "the state that is carried over decays one step too little",
    ),
    Bug(
        "recurrence_chunks",
        "state = part[:, -1]",
        "state = part[:, -1] * (chunk.shape[1] == self.CHUNK)",
        "a chunk that is not full forgets the state",
        equivalent="only the last chunk may be short, and nothing comes after it",
    ),
    Bug(
        "recurrence_chunks",
        "lag[..., None] >= 0",
        "lag[..., None] > 0",
        "a step does not count itself",
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
        "a table read across, where lengths and widths are close",
    ),
    Bug("rotary_kernel", "9.210340371976184", "9.21", "the logarithm of the base to two digits"),
    Bug(
        "rotary_kernel",
        "row[d] * c - row[d + half] * s",
        "row[2 * d] * c - row[2 * d + 1] * s",
        "neighbours are paired instead of halves",
    ),
    Bug(
        "broadcast_in_place",
        "torch.mul(x, scale)",
        "torch.mul(x, scale.transpose(1, 2))",
        "scaled along the wrong axis, as long as the right one",
    ),
    Bug("broadcast_in_place", ".transpose(0, 2)", ".transpose(0, 1)", "the wrong axes exchanged"),
    Bug(
        "broadcast_in_place", "torch.mul(x, scale)", "x.mul_(scale)", "the input is scaled in place"
    ),
    Bug(
        "activations_branches",
        "std::log1p(std::exp(-std::fabs(x[i])))",
        "std::log(1 + std::exp(-std::fabs(x[i])))",
        "a logarithm of one plus little",
        equivalent=(
            "the error is absolute, one unit in the last place of 1, "
            "and the rule is one of absolute errors"
        ),
    ),
    Bug(
        "activations_branches",
        "std::min(x[i], 0.0f) - rest",
        "-std::log(1 + std::exp(-x[i]))",
        "overflow far below zero",
    ),
    Bug(
        "activations_branches",
        "x[i] > 20 ? x[i] : std::max(x[i], 0.0f) + rest",
        "std::log1p(std::exp(x[i]))",
        "overflow far above zero",
    ),
    Bug(
        "activations_branches",
        "x[i] >= 3 ? x[i]",
        "x[i] >= 3.5f ? x[i]",
        "a branch begins too late",
    ),
    Bug(
        "max_pool_windows",
        "float most = -INFINITY;",
        "float most = 0;",
        "what hangs over the edge counts as zero",
    ),
    Bug(
        "max_pool_windows",
        "std::min(2 * i + 2, height)",
        "std::min(2 * i + 1, height)",
        "one row of each window is left out",
    ),
    Bug(
        "max_pool_windows",
        "std::max(2 * j - 1, 0L)",
        "std::max(2 * j - 1, 1L)",
        "the first column is left out",
    ),
    Bug(
        "max_pool_windows",
        "std::min(2 * j + 2, width)",
        "std::min(2 * j + 2, width - 1)",
        "the last column is left out",
    ),
    Bug(
        "cosine_compensated",
        "p[k] / std::max(along, 1e-12f)",
        "p[k] / along",
        "no epsilon: NaN for a row of zeros",
    ),
    Bug(
        "cosine_compensated",
        "(std::max(along, 1e-8f) * std::max(across, 1e-8f))",
        "(along * across)",
        "no epsilon: NaN where one of the rows is zero",
    ),
    Bug(
        "cosine_compensated",
        "second.add(q[k] * q[k])",
        "second.add(p[k] * p[k])",
        "the length of the wrong vector",
    ),
    Bug(
        "cosine_compensated",
        "std::max(along, 1e-12f);",
        "(along + 1e-3f);",
        "a large epsilon added",
    ),
    Bug(
        "product_square_tiles",
        "x[k * size + top + j]",
        "x[(top + j) * size + k]",
        "not transposed, where rows and columns are of one number",
    ),
    Bug(
        "product_square_tiles",
        "w[k * size + left + j]",
        "w[(left + j) * size + k]",
        "the weight is transposed",
    ),
    Bug("product_square_tiles", "+ b[j]", "+ b[i]", "a column is added where a row is wanted"),
    Bug("product_square_tiles", "+ b[j]", "", "no bias, where it is zero at first"),
    Bug(
        "product_square_tiles",
        "k < size && top + j < size ? x",
        "top + j < size ? x",
        "rows past the last one: what stands behind the matrix is read",
    ),
    Bug(
        "product_square_tiles",
        "float sum[TILE][TILE] = {}, first",
        "static float sum[TILE][TILE]; float first",
        "sums that live from tile to tile, shared by all threads",
    ),
    Bug(
        "product_square_tiles",
        "begin < size; begin += TILE",
        "begin <= size - TILE; begin += TILE",
        "the last tile, which is not full, is left out",
    ),
    Bug(
        "huber_written_out",
        "0.5 * (error - 0.25)",
        "0.5 * (error - 0.5)",
        "the branches do not meet",
    ),
    Bug("huber_written_out", "error < 0.5", "error < 1", "the threshold of another loss"),
    Bug("huber_written_out", ".clamp(min=1)", "", "NaN where nothing is kept"),
    Bug(
        "huber_written_out",
        "keep.sum().clamp(min=1)",
        "keep.numel()",
        "the ignored count in the mean",
    ),
    Bug(
        "wide_bf16",
        "float sum[16] = {}, total",
        "float sum[16] = {}; float total",
        "the same in two declarations",
        equivalent="nothing changes",
    ),
    Bug(
        "wide_bf16",
        "sum[k % 16] += rounded",
        "sum[k % 16] = rounded(sum[k % 16]) + rounded",
        "sums rounded to bfloat16 as well",
    ),
    Bug(
        "wide_bf16",
        "k < width; ++k)\n        sum",
        "k < width - 1; ++k)\n        sum",
        "the last of 16384 products is left out",
    ),
    Bug(
        "moments_pairwise",
        "x[..., even:]",
        "x[..., even:] * 0",
        "what is left over of an odd number is left out",
    ),
    Bug("ranking_last_first", "x.shape[-1] - 1 - torch", "x.shape[-1] - torch", "a place too far"),
)
