"""Bugs at ties of roundings, edges of intervals and signs of zero."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "fake_quant_kernel",
        "std::nearbyint(x[i * width + d] / scale[d])",
        "std::round(x[i * width + d] / scale[d])",
        "halves are rounded away from zero",
    ),
    Bug(
        "fake_quant_kernel",
        "std::nearbyint(x[i * width + d] / scale[d])",
        "std::floor(x[i * width + d] / scale[d] + 0.5f)",
        "halves are rounded up",
    ),
    Bug(
        "fake_quant_kernel",
        "std::nearbyint(x[i * width + d] / scale[d])",
        "std::trunc(x[i * width + d] / scale[d])",
        "truncates instead of rounding",
    ),
    Bug(
        "fake_quant_kernel",
        "std::nearbyint(x[i * width + d] / scale[d]) + zero[d]",
        "std::nearbyint(x[i * width + d] / scale[d] + zero[d])",
        "rounds after adding the zero point",
    ),
    Bug("fake_quant_kernel", "-128.0f", "-127.0f", "the lowest level is omitted"),
    Bug(
        "fake_quant_kernel",
        "(level - zero[d]) *",
        "level *",
        "the zero point, initially zero, is not subtracted",
    ),
    Bug(
        "fake_quant_kernel",
        "scale[d]) + zero[d];",
        "scale[d]);",
        "the zero point, initially zero, is not added before the clamp",
    ),
    Bug("fake_quant_in_place", ".round_()", ".add_(0.5).floor_()", "halves are rounded up"),
    Bug(
        "edges_lookup_search",
        "std::upper_bound",
        "std::lower_bound",
        "an edge belongs to the previous interval",
    ),
    Bug(
        "edges_lookup_search",
        "std::upper_bound(edges, edges + numbers, x[i]) - edges;",
        ("std::min(std::max(static_cast<long>(std::floor((x[i] + 2) * 2)) + 1, 0L), numbers);"),
        ("computes the interval from the initial edges"),
    ),
    Bug(
        "edges_lookup_counted",
        "~(x[..., None] < self.edges)",
        "x[..., None] > self.edges",
        "an edge belongs to the previous interval, and NaN to the first",
    ),
    Bug(
        "whole_numbers_kernel",
        "low[i] = std::floor(a);",
        "low[i] = static_cast<int>(a);",
        "truncates, which is wrong for negative and for large numbers",
    ),
    Bug(
        "whole_numbers_kernel",
        "std::ceil(a)",
        "std::floor(a) + 1",
        "adds one to whole numbers",
    ),
    Bug(
        "whole_numbers_kernel", "std::rint(a)", "std::round(a)", "halves are rounded away from zero"
    ),
    Bug("whole_numbers_kernel", "std::rint(a)", "std::floor(a + 0.5f)", "halves are rounded up"),
    Bug(
        "whole_numbers_kernel",
        "left[i] = a - std::floor(a);",
        "left[i] = a - std::trunc(a);",
        "the fractional part of negative numbers is negative",
    ),
    Bug(
        "whole_numbers_kernel",
        "std::rint(a)",
        "std::nearbyint(a)",
        "the other function that rounds to even",
        equivalent="both use the rounding mode of the processor",
    ),
    Bug(
        "sign_agreement_kernel",
        "signs[k] = sign_of(a[k]);",
        "signs[k] = a[k] < 0 ? -1 : 1;",
        "the sign of zero is one",
    ),
    Bug(
        "sign_agreement_kernel",
        "(x > 0) - (x < 0)",
        "(x >= 0) - (x < 0)",
        "zero counts as positive in the count and in the signs",
    ),
    Bug(
        "sign_agreement_kernel",
        "sign_of(a[k]) == sign_of(b[k])",
        "a[k] * b[k] > 0",
        "two zeros do not agree",
    ),
    Bug(
        "sign_agreement_kernel",
        "sign_of(a[k]) == sign_of(b[k])",
        "a[k] * b[k] >= 0",
        "zero agrees with all numbers",
    ),
    Bug(
        "power_scale_kernel",
        (
            "const float magic = 12582912.0f;\n"
            "  return std::fabs(x) < 4194304.0f ? (x + magic) - magic : x;"
        ),
        "return std::round(x);",
        "halves are rounded away from zero",
    ),
    Bug(
        "power_scale_kernel",
        (
            "const float magic = 12582912.0f;\n"
            "  return std::fabs(x) < 4194304.0f ? (x + magic) - magic : x;"
        ),
        ("return static_cast<float>(static_cast<long>(x + (x < 0 ? -0.5f : 0.5f)));"),
        "adds a half and truncates, so halves go away from zero",
    ),
    Bug("power_scale_kernel", "std::ldexp(1.0f, exponent[i])", "0.25f", "the exponent is not read"),
    Bug(
        "power_scale_kernel",
        "exponent[i]",
        "exponent[0]",
        "the exponent of the first row is used for all rows",
    ),
    Bug("power_scale_kernel", "-8.0f", "-7.0f", "the lowest level is omitted"),
    Bug(
        "int8_rows_written_out",
        "((y - low == 0.5) & (low % 2 != 0))",
        "(y - low == 0.5)",
        "rounds half up",
    ),
    Bug(
        "int8_rows_written_out",
        "((y - low == 0.5) & (low % 2 != 0))",
        "((y - low == 0.5) & (y > 0))",
        "rounds half away from zero",
    ),
    Bug(
        "int8_rows_written_out", "((y - low == 0.5) & (low % 2 != 0))", "False", "rounds half down"
    ),
    Bug("quarters_magic", "(y + big) - big", "(y + 0.5).floor()", "rounds half up"),
    Bug(
        "quarters_magic",
        "(y + big) - big",
        "(y + 0.5 * y.sign()).trunc()",
        "rounds half away from zero",
    ),
    Bug(
        "quarters_magic",
        "(y + big) - big",
        "y.round() + ((y % 2) == 0.5)",
        "rounds half to odd below odd halves",
    ),
    Bug(
        "nearest_entry_selected",
        "std::nearbyint(x[i])",
        "std::round(x[i])",
        "rounds half away from zero",
    ),
    Bug(
        "nearest_entry_selected",
        "std::nearbyint(x[i])",
        "std::floor(x[i] + 0.5f)",
        "rounds half up",
    ),
    Bug(
        "nearest_entry_selected",
        "std::nearbyint(x[i])",
        "std::ceil(x[i] - 0.5f)",
        "rounds half down",
    ),
)
