"""References that handle NaN on purpose, and kernels that do not."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug("nan_mean_rows_kernel", "if (!std::isnan(x[k])) {", "{", "a plain mean"),
    Bug("nan_mean_rows_kernel", "sum / members", "sum / width", "divided by the width of the row"),
    Bug(
        "nan_mean_rows_kernel",
        "sum / members",
        "(members ? sum / members : 0)",
        "zero for a row in which nothing is there",
    ),
    Bug(
        "nan_mean_rows_kernel",
        "#include <cmath>",
        ("// cuagent: flags -ffast-math\n#include <cmath>"),
        "with -ffast-math, by which the compiler takes NaN to be impossible",
    ),
    Bug(
        "nan_mean_rows_where",
        "torch.where(there, x, 0)",
        "x",
        "the sum of all, in which NaN spreads",
    ),
    Bug(
        "nan_mean_rows_where",
        "there.sum(-1)",
        "there.sum(-1).clamp(min=1)",
        "zero for a row in which nothing is there",
    ),
    Bug("clean_numbers_kernel", "if (std::isnan(a)) a = 0;", "// as it is", "NaN is left as it is"),
    Bug(
        "clean_numbers_kernel",
        "if (std::isinf(a)) a = a > 0 ? 100 : -100;",
        "// as it is",
        "infinities are left as they are",
    ),
    Bug(
        "clean_numbers_kernel",
        "if (std::isinf(a)) a = a > 0 ? 100 : -100;",
        "a = std::fmin(std::fmax(a, -100.0f), 100.0f);",
        "finite numbers past 100 are cut off as well",
    ),
    Bug(
        "clean_numbers_kernel",
        "if (std::isnan(a)) a = 0;",
        "if (a == NAN) a = 0;",
        "a comparison with NaN, which is never true",
    ),
    Bug(
        "clean_numbers_kernel",
        "a > 0 ? 100 : -100",
        "100",
        "minus infinity becomes a positive number",
    ),
    Bug(
        "missing_values_kernel",
        "const bool missing = a != a;",
        "const bool missing = false;",
        "nothing is taken to be missing",
    ),
    Bug(
        "missing_values_kernel",
        "// One row at a time.",
        "// cuagent: flags -ffast-math",
        ("with -ffast-math, by which the compiler takes a number to be equal to itself"),
    ),
    Bug(
        "missing_values_kernel",
        "missing ? fill[d] : a",
        "missing ? 0 : a",
        "missing numbers are zero: the learned one is at first",
    ),
    Bug(
        "missing_values_kernel",
        "width + d] = missing;",
        "width + d] = !missing;",
        "the mark says what is there",
    ),
    Bug(
        "larger_there_fmax",
        "std::fmax(a[i], b[i])",
        "std::max(a[i], b[i])",
        "NaN of the first one stays",
    ),
    Bug(
        "larger_there_fmax",
        "std::fmax(a[i], b[i])",
        "a[i] > b[i] ? a[i] : b[i]",
        "NaN of the second one stays",
    ),
    Bug(
        "larger_there_fmax",
        "std::fmax(a[i], b[i])",
        "std::fmax(b[i], a[i])",
        "the other order",
        equivalent="the function is symmetric, but for the sign of zero",
    ),
    Bug("larger_there_where", "b.isnan() | (a >= b)", "a >= b", "NaN of the second one stays"),
    Bug(
        "larger_there_where",
        "torch.where(b.isnan() | (a >= b), a, b)",
        "torch.maximum(a, b)",
        "NaN of either one stays",
    ),
    Bug(
        "visible_softmax_kernel",
        "sum > 0 ? 1 / sum : 0",
        "1 / sum",
        "a row of which nothing is shown is NaN",
    ),
    Bug(
        "visible_softmax_kernel",
        "sum > 0 ? 1 / sum : 0",
        "1 / (sum + 1e-4f)",
        "an epsilon instead of a test",
    ),
    Bug(
        "visible_softmax_kernel",
        "float largest = -INFINITY, sum = 0;",
        "float largest = 0, sum = 0;",
        "the maximum starts at zero: a row far below is zero",
    ),
)
