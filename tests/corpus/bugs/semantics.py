"""Bugs in the meaning of an operation: angles, remainders, hashes, float64, borders, bytes."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug("polar_rows_kernel", "std::atan2(y[i], x[i])", "std::atan(y[i] / x[i])", "no quadrant"),
    Bug("polar_rows_kernel", "      if (rest < 0) rest += turn;\n", "", "C's sign of a remainder"),
    Bug(
        "polar_rows_kernel",
        "float rest = std::fmod(sum, turn);",
        "float rest = sum >= turn ? sum - turn : sum;",
        "at most one turn is taken off",
    ),
    Bug(
        "polar_rows_kernel",
        "std::hypot(x[i], y[i])",
        "std::max(std::fabs(x[i]), std::fabs(y[i])) "
        "+ 0.4f * std::min(std::fabs(x[i]), std::fabs(y[i]))",
        "a known approximation of the length",
    ),
    Bug("hashed_rows_kernel", "const int64_t id = ids[i]", "const int id = ids[i]", "32 bits"),
    Bug(
        "hashed_rows_kernel",
        "    if (bucket < 0) bucket += buckets;\n",
        "    if (bucket < 0) bucket = -bucket;\n",
        "the sign of a remainder is dropped",
    ),
    Bug(
        "hashed_rows_kernel",
        "(id >> 7)",
        "static_cast<int64_t>(static_cast<uint64_t>(id) >> 7)",
        "a logical shift",
    ),
    Bug(
        "hashed_rows_kernel",
        "static_cast<uint64_t>(id) * 2654435761u",
        "static_cast<uint32_t>(id) * 2654435761u",
        "the product has 32 bits",
    ),
    Bug(
        "double_rows_kernel",
        "double sum = 0, square = 0",
        "double sum = 0; float square = 0",
        "the variance in float32",
    ),
    Bug("double_rows_kernel", "const double mean", "const float mean", "the mean in float32"),
    Bug(
        "double_rows_kernel",
        "1 / std::sqrt(square / n + 1e-12)",
        "1 / std::sqrt(static_cast<float>(square / n + 1e-12))",
        "the root in float32",
    ),
    Bug("double_rows_kernel", "square / n + 1e-12", "square / n + 1e-8", "a larger epsilon"),
    Bug(
        "reflected_filter_kernel",
        "if (at < 0) at = -at;",
        "if (at < 0) at = -at - 1;",
        "the first number is repeated",
    ),
    Bug(
        "reflected_filter_kernel",
        "2 * (n - 1) - at",
        "2 * n - 1 - at",
        "the last number is repeated",
    ),
    Bug("reflected_filter_kernel", "taps[t]", "taps[count - 1 - t]", "the filter is turned round"),
    Bug(
        "reflected_filter_kernel",
        "if (at >= n) at = 2 * (n - 1) - at;",
        "if (at >= n) at = n - 1;",
        "the right end is repeated",
    ),
    Bug(
        "relative_entropy_kernel",
        "share == 0 ? 0.0f : share * std::log(share)",
        "share * std::log(share)",
        "zero times minus infinity",
    ),
    Bug(
        "relative_entropy_kernel",
        "share == 0 ? 0.0f : share * std::log(share)",
        "share * std::log(share + 1e-3f)",
        "a small number within the logarithm",
    ),
    Bug(
        "relative_entropy_kernel",
        "total < 1 ? 1.0f : total",
        "total",
        "rows without counts divide by zero",
    ),
    Bug(
        "lower_median_kernel",
        "(static_cast<long>(a.size()) - 1) / 2",
        "static_cast<long>(a.size()) / 2",
        "the upper median",
    ),
    Bug(
        "lower_median_kernel",
        "  for (float v : a)\n    if (v != v) return v;\n",
        "",
        "NaN is sorted",
        equivalent="only drawn NaN shows it, which the task does not have",
    ),
    Bug(
        "lower_median_kernel",
        "middle(a) + 1e-3f",
        "std::max(middle(a), 1e-3f)",
        "the larger instead of the sum",
    ),
    Bug(
        "blended_bytes_kernel",
        "std::nearbyint(mixed)",
        "std::floor(mixed + 0.5f)",
        "halves are rounded up",
    ),
    Bug("blended_bytes_kernel", "std::nearbyint(mixed)", "std::trunc(mixed)", "cut, not rounded"),
    Bug(
        "blended_bytes_kernel",
        "std::min(255.0f, std::max(0.0f, whole))",
        "static_cast<int>(whole)",
        "values beyond a byte wrap",
    ),
    Bug(
        "blended_bytes_kernel",
        "std::min(255.0f, std::max(0.0f, whole))",
        "std::min(255.0f, std::fabs(whole))",
        "negative values lose their sign",
    ),
)
