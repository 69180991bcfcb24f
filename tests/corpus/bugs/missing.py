"""Bugs that ignore NaN where the reference handles it on purpose."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug("nan_mean_rows_kernel", "if (!std::isnan(x[k])) {", "{", "a plain mean"),
    Bug("nan_mean_rows_kernel", "sum / members", "sum / width", "divided by the width of the row"),
    Bug(
        "nan_mean_rows_kernel",
        "sum / members",
        "(members ? sum / members : 0)",
        "zero for a row without numbers",
    ),
    Bug(
        "nan_mean_rows_kernel",
        "#include <cmath>",
        ("// cuagent: flags -ffast-math\n#include <cmath>"),
        "-ffast-math lets the compiler assume that NaN does not occur",
    ),
    Bug(
        "nan_mean_rows_where",
        "torch.where(there, x, 0)",
        "x",
        "sums all elements, so NaN spreads",
    ),
    Bug(
        "nan_mean_rows_where",
        "there.sum(-1)",
        "there.sum(-1).clamp(min=1)",
        "zero for a row without numbers",
    ),
    Bug("clean_numbers_kernel", "if (std::isnan(a)) a = 0;", "// as it is", "NaN is not replaced"),
    Bug(
        "clean_numbers_kernel",
        "if (std::isinf(a)) a = a > 0 ? 100 : -100;",
        "// as it is",
        "infinities are not replaced",
    ),
    Bug(
        "clean_numbers_kernel",
        "if (std::isinf(a)) a = a > 0 ? 100 : -100;",
        "a = std::fmin(std::fmax(a, -100.0f), 100.0f);",
        "finite numbers above 100 are clamped too",
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
        "no number counts as missing",
    ),
    Bug(
        "missing_values_kernel",
        "// One row at a time.",
        "// cuagent: flags -ffast-math",
        ("-ffast-math lets the compiler assume that a number equals itself"),
    ),
    Bug(
        "missing_values_kernel",
        "missing ? fill[d] : a",
        "missing ? 0 : a",
        "missing numbers become zero, the initial value of the learned number",
    ),
    Bug(
        "missing_values_kernel",
        "width + d] = missing;",
        "width + d] = !missing;",
        "the output marks present instead of missing numbers",
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
        "the arguments are exchanged",
        equivalent="the function is symmetric, except for the sign of zero",
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
        "a row without visible elements is NaN",
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
        "the maximum starts at zero, so a row far below it is zero",
    ),
    Bug(
        "largest_known_fmax",
        "torch.fmax(y, column)",
        "torch.maximum(y, column)",
        "a missing number makes the result missing",
    ),
    Bug("largest_known_fmax", 'float("-inf")', "-1e30", "a row of missing numbers gives -1e30"),
    Bug(
        "largest_known_fmax",
        "return y",
        "return y.nan_to_num(neginf=0.0)",
        "a row of missing numbers gives zero",
    ),
    Bug("largest_known_replaced", "nan=-torch.inf, ", "", "missing numbers count as zero"),
    Bug("finite_mean_counted", "(x - x) == 0", "x == x", "infinities count as numbers"),
    Bug(
        "finite_mean_counted",
        "(x.shape[-1] / good.float().sum(-1).clamp(min=1))",
        "1",
        "divides by the length",
    ),
    Bug("finite_mean_counted", ".clamp(min=1))", ")", "a row without numbers is missing"),
    Bug(
        "finite_mean_counted",
        "(x - x) == 0",
        "x < float('inf')",
        "minus infinity counts as a number",
    ),
    Bug(
        "filled_norm_written_out",
        "torch.where(x.isnan(), 0.5, x)",
        "torch.where(x.isnan(), 0.0, x)",
        "missing numbers are zero",
    ),
    Bug(
        "filled_norm_written_out",
        "torch.where(x == torch.inf, 6.0, torch.where(x == -torch.inf, -6.0, x))",
        "x.clamp(-6, 6)",
        "limits finite numbers too",
    ),
    Bug(
        "filled_norm_written_out",
        "x == torch.inf, 6.0",
        "x == torch.inf, 60.0",
        "infinity is replaced by 60",
    ),
    Bug(
        "filled_norm_written_out",
        "x = torch.where(x.isnan(), 0.5, x)",
        "x = x.clone()",
        "missing numbers stay",
    ),
)
