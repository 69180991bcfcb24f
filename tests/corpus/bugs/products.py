"""Bugs in matrix products, mixtures of experts and distances."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "linear_naive",
        "for (long i = 0; i < rows; ++i)",
        "for (long i = 1; i < rows; ++i)",
        "the first row is never written",
    ),
    Bug("linear_naive", "k < width; ++k", "k < width - 1; ++k", "the last product is omitted"),
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
        "the threshold of the ReLU is slightly too high",
    ),
    Bug(
        "linear_naive",
        "#pragma omp parallel for",
        "static float sum;\n#pragma omp parallel for",
        "an unused variable, hidden by the inner one",
        equivalent=("the declaration inside the loops hides the static one, which is never read"),
    ),
    Bug("linear_naive", "float sum = b[j];", "_Float16 sum = b[j];", "sums in half precision"),
    Bug("linear_naive", "y[i * out + j]", "y[j * rows + i]", "the output is written transposed"),
    Bug(
        "linear_tiles",
        "std::min(top + TILE, rows)",
        "top + TILE - (top + TILE > rows)",
        "the last rows are right only if rows are a multiple of the tile",
        equivalent=(
            "the declared shape has 32 rows, a multiple of 8, so the condition is never true"
        ),
    ),
    Bug(
        "linear_tiles",
        "for (long start = 0; start < width; start += BLOCK)",
        "for (long start = 0; start + BLOCK < width; start += BLOCK)",
        "the last block of the sum is omitted",
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
        "the block size does not divide the length of the sum",
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
            "only the extra accuracy is lost: the error is that of a plain fp32 "
            "sum, which the task admits"
        ),
    ),
    Bug(
        "linear_kahan",
        "- lost;",
        "+ lost;",
        "the compensation is added instead of subtracted",
        equivalent=(
            "only the extra accuracy is lost: the error is that of a plain fp32 "
            "sum, which the task admits"
        ),
    ),
    Bug(
        "linear_kahan",
        "sum = next;",
        "sum = next - lost;",
        "the compensation is applied twice",
        equivalent=(
            "only the extra accuracy is lost: the error is that of a plain fp32 "
            "sum, which the task admits"
        ),
    ),
    Bug(
        "linear_kahan",
        "k < width; ++k",
        "k < width; k += 1 + (k == 7)",
        "the ninth product is omitted",
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
        "packs only once, although new weights may be loaded",
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
        "the bias is subtracted",
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
        "one part is omitted",
    ),
    Bug(
        "linear_in_parts",
        "torch.where(total > 0, total, 0)",
        "torch.where(total > 0, total, total * 1e-3)",
        "a leaky ReLU",
    ),
    Bug(
        "linear_two_threads",
        "half = x.shape[0] // 2",
        "half = x.shape[0] // 2 - 1",
        "halves of different size",
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
        "one of 16384 products is omitted",
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
        "half of the partial sums are added twice",
    ),
    Bug(
        "wide_double",
        "self.linear.weight.double().t()",
        "self.linear.weight.half().double().t()",
        "the weight passes through half precision",
    ),
    Bug("matmul_half_kernel", "float sum = 0;", "_Float16 sum = 0;", "sums in half precision"),
    Bug(
        "matmul_half_kernel", "k < inner; ++k", "k < inner - 1; ++k", "the last product is omitted"
    ),
    Bug(
        "distance_kernel",
        "sum += gap * gap",
        "sum += gap * (a[i * width + d] + b[j * width + d])",
        "a difference of squares instead of a squared difference",
    ),
    Bug("distance_kernel", "b[j * width + d]", "b[i * width + d]", "uses the wrong point"),
    Bug("distance_rows", "dim=1)", "dim=1, ord=1)", "the sum of absolute differences"),
    Bug(
        "product_square_tiles",
        "x[k * size + top + j]",
        "x[(top + j) * size + k]",
        "not transposed; rows and columns have equal numbers",
    ),
    Bug(
        "product_square_tiles",
        "w[k * size + left + j]",
        "w[(left + j) * size + k]",
        "the weight is transposed",
    ),
    Bug("product_square_tiles", "+ b[j]", "+ b[i]", "adds a column instead of a row"),
    Bug("product_square_tiles", "+ b[j]", "", "omits the bias, which is initialised with zero"),
    Bug(
        "product_square_tiles",
        "k < size && top + j < size ? x",
        "top + j < size ? x",
        "reads rows behind the end of the matrix",
    ),
    Bug(
        "product_square_tiles",
        "float sum[TILE][TILE] = {}, first",
        "static float sum[TILE][TILE]; float first",
        "sums are static: not reset between tiles, and shared by all threads",
    ),
    Bug(
        "product_square_tiles",
        "begin < size; begin += TILE",
        "begin <= size - TILE; begin += TILE",
        "the last, partial tile is omitted",
    ),
    Bug(
        "wide_bf16",
        "float sum[16] = {}, total",
        "float sum[16] = {}; float total",
        "splits one declaration into two",
        equivalent="nothing changes",
    ),
    Bug(
        "wide_bf16",
        "sum[k % 16] += rounded",
        "sum[k % 16] = rounded(sum[k % 16]) + rounded",
        "also rounds sums to bfloat16",
    ),
    Bug(
        "wide_bf16",
        "k < width; ++k)\n        sum",
        "k < width - 1; ++k)\n        sum",
        "the last of 16384 products is omitted",
    ),
    Bug(
        "quantized_kernel",
        "static_cast<int8_t>(held)",
        "static_cast<int8_t>(x[i * width + j] / scale[i])",
        "rounds towards zero instead of to nearest",
    ),
    Bug("quantized_kernel", "/ 127", "/ 128", "uses the scale of another range"),
    Bug(
        "quantized_kernel",
        "std::max(most, std::fabs(x[i * width + j]))",
        "std::max(most, x[i * width + j])",
        "uses the largest element instead of the largest absolute value",
    ),
    Bug(
        "quantized_kernel",
        "std::max(-128.0f, whole)",
        "std::max(-127.0f, whole)",
        "another lower limit",
        equivalent="no element exceeds 127 times the scale",
    ),
    Bug("experts_kernel", "e != first && ", "", "selects the best expert twice"),
    Bug("experts_kernel", ", ++taken[second]", "", "the second choice is not counted"),
    Bug("experts_kernel", "p[e] /= sum, ", "", "shares whose sum is not one"),
    Bug("experts_kernel", "long i = 0; i < rows", "long i = 1; i < rows", "a row is omitted"),
    Bug(
        "experts_kernel",
        "(2.0f * rows * rows)",
        "(2.0f * rows * (rows - 1))",
        "the mean divides by one less",
    ),
    Bug(
        "experts_kernel",
        "long e = 1; e < EXPERTS",
        "long e = 1; e < EXPERTS - 1",
        "the last expert is never first",
        equivalent="it is then second, and both are counted equally",
    ),
    Bug(
        "experts_masked",
        "torch.bincount(7 - torch.cat([first, second]).reshape(-1), minlength=8)",
        "(shares >= shares.gather(-1, 7 - second)).sum(0)",
        "selects all shares that equal the second",
    ),
)
