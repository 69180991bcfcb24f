"""Memory that nobody wrote, and races between threads."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "label_sums_atomic",
        ("#pragma omp atomic\n    sums"),
        "sums",
        "sums are added without an atomic",
    ),
    Bug(
        "label_sums_atomic",
        ("#pragma omp atomic\n    count"),
        "count",
        "counts are added without an atomic",
    ),
    Bug(
        "label_sums_atomic",
        "torch.zeros(self.labels), torch.zeros(self.labels)",
        "torch.empty(self.labels), torch.zeros(self.labels)",
        "sums begin with what lies in fresh memory",
    ),
    Bug(
        "label_sums_private",
        "std::calloc(most * 2 * labels, sizeof(float))",
        "std::malloc(most * 2 * labels * sizeof(float))",
        "sums of threads begin with what malloc finds",
    ),
    Bug(
        "label_sums_private",
        "omp_get_thread_num() * 2 * labels",
        "omp_get_thread_num() % 2 * 2 * labels",
        "two threads share the same sums",
    ),
    Bug(
        "label_sums_private",
        "team = omp_get_num_threads();",
        "team = omp_get_num_threads() - (omp_get_num_threads() > 1);",
        "the sums of the last thread are left out",
    ),
    Bug(
        "label_sums_private",
        "t < team",
        "t < most",
        "all that was reserved is added",
        equivalent="what no thread used was cleared by calloc",
    ),
    Bug(
        "column_moments_reduced",
        " reduction(+ : mean[ : width])",
        "",
        "means are added by all threads without a reduction",
    ),
    Bug(
        "column_moments_reduced",
        " reduction(+ : var[ : width])",
        "",
        "variances are added by all threads without a reduction",
    ),
    Bug(
        "column_moments_reduced",
        "mean[d] = var[d] = 0;",
        "mean[d] = 0;",
        "variances begin with what lies in fresh memory",
    ),
    Bug(
        "column_moments_reduced",
        (
            "const float z = x[i * width + d] - mean[d];\n"
            "      var[d] += z * z;\n"
            "    }\n"
            "  for (long d = 0; d < width; ++d) var[d] /= rows;"
        ),
        (
            "var[d] += x[i * width + d] * x[i * width + d];\n"
            "    }\n"
            "  for (long d = 0; d < width; ++d) var[d] = var[d] / rows - mean[d] * "
            "mean[d];"
        ),
        "the mean of squares less the square of the mean",
    ),
    Bug(
        "column_moments_partial",
        "std::memset(part, 0, bytes);",
        "// fresh",
        ("partial sums begin with what malloc finds, and the second pass with those of the first"),
    ),
    Bug(
        "column_moments_partial",
        "std::memset(part, 0, bytes);",
        "if (pass) std::memset(part, 0, bytes);",
        "partial sums of the first pass begin with what malloc finds",
    ),
    Bug(
        "column_moments_partial",
        "part[p * width + d] += pass",
        "part[p % 2 * width + d] += pass",
        "stretches of several threads share their sums",
    ),
    Bug(
        "column_moments_partial",
        "std::malloc(bytes)",
        "std::calloc(1, bytes)",
        "cleared memory, which is cleared again",
        equivalent="it was cleared already",
    ),
    Bug(
        "pair_energy_reduced",
        " reduction(+ : total)",
        "",
        "the sum of all threads without a reduction",
    ),
    Bug(
        "pair_energy_reduced",
        "for (long j = i + 1; j < count; ++j)",
        "for (long j = i; j < count; ++j)",
        "each point with itself as well",
    ),
    Bug(
        "pair_energy_reduced",
        "schedule(static)",
        "schedule(dynamic, 8)",
        "another share of the points for each thread",
        equivalent="the sum is in double precision, in any order",
    ),
    Bug(
        "trimmed_mean_scratch",
        ("std::vector<float> scratch(width);\n#pragma omp for"),
        ("static std::vector<float> scratch(width);\n#pragma omp for"),
        "one scratch row for all threads",
    ),
    Bug(
        "trimmed_mean_scratch",
        ("#pragma omp parallel\n  {\n    std::vector<float> scratch(width);"),
        ("std::vector<float> scratch(width);\n#pragma omp parallel\n  {"),
        "the scratch row is declared before the threads begin, and so is shared",
    ),
    Bug(
        "trimmed_mean_network",
        "for (long d = width; d < wide; ++d) s[d] = INFINITY;",
        "// the rest is left",
        "what fills a row up is what malloc finds",
    ),
    Bug("trimmed_mean_network", "s[d] = INFINITY;", "s[d] = 0;", "rows are filled up with zeros"),
    Bug(
        "trimmed_mean_network",
        "s[d] = INFINITY;",
        "s[d] = 1e4f;",
        "rows are filled up with a number that is less than others may be",
    ),
)
