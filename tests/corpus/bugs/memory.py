"""Bugs with unwritten memory and with races between threads."""

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
        "sums start with the content of fresh memory",
    ),
    Bug(
        "label_sums_private",
        "std::calloc(most * 2 * labels, sizeof(float))",
        "std::malloc(most * 2 * labels * sizeof(float))",
        "sums of threads start with the content that malloc returns",
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
        "the sums of the last thread are omitted",
    ),
    Bug(
        "label_sums_private",
        "t < team",
        "t < most",
        "adds all reserved sums",
        equivalent="calloc cleared the sums that no thread used",
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
        "variances start with the content of fresh memory",
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
        "the mean of squares minus the square of the mean",
    ),
    Bug(
        "column_moments_partial",
        "std::memset(part, 0, bytes);",
        "// fresh",
        (
            "partial sums start with the content that malloc returns, those of the "
            "second pass with the first's"
        ),
    ),
    Bug(
        "column_moments_partial",
        "std::memset(part, 0, bytes);",
        "if (pass) std::memset(part, 0, bytes);",
        "partial sums of the first pass start with the content that malloc returns",
    ),
    Bug(
        "column_moments_partial",
        "part[p * width + d] += pass",
        "part[p % 2 * width + d] += pass",
        "ranges of several threads share their sums",
    ),
    Bug(
        "column_moments_partial",
        "std::malloc(bytes)",
        "std::calloc(1, bytes)",
        "memory is cleared twice",
        equivalent="it is already cleared",
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
        "also pairs each point with itself",
    ),
    Bug(
        "pair_energy_reduced",
        "schedule(static)",
        "schedule(dynamic, 8)",
        "another distribution of points over threads",
        equivalent="the sum is in double precision, so its order does not matter",
    ),
    Bug(
        "trimmed_mean_scratch",
        ("std::vector<float> scratch(width);\n#pragma omp for"),
        ("static std::vector<float> scratch(width);\n#pragma omp for"),
        "all threads share one scratch row",
    ),
    Bug(
        "trimmed_mean_scratch",
        ("#pragma omp parallel\n  {\n    std::vector<float> scratch(width);"),
        ("std::vector<float> scratch(width);\n#pragma omp parallel\n  {"),
        "the scratch row is declared before the parallel region and is shared",
    ),
    Bug(
        "trimmed_mean_network",
        "for (long d = width; d < wide; ++d) s[d] = INFINITY;",
        "// the rest is left",
        "the padding of a row is the content that malloc returns",
    ),
    Bug("trimmed_mean_network", "s[d] = INFINITY;", "s[d] = 0;", "rows are padded with zeros"),
    Bug(
        "trimmed_mean_network",
        "s[d] = INFINITY;",
        "s[d] = 1e4f;",
        "rows are padded with a number that elements can exceed",
    ),
    Bug(
        "padded_filter_scratch",
        "std::memset(line, 0, 3 * sizeof(float));",
        "",
        "the padding before the line is not written",
    ),
    Bug(
        "padded_filter_scratch",
        "std::memset(line + width + 3, 0, 3 * sizeof(float));",
        "",
        "the padding behind the line is not written",
    ),
    Bug(
        "padded_filter_scratch",
        "std::memset(line + width + 3, 0, 3 * sizeof(float));",
        "std::memset(line + width + 3, 0, 2 * sizeof(float));",
        "the last padding is not written",
    ),
    Bug("padded_filter_scratch", "k < 7", "k < 8", "reads one number behind the taps"),
    Bug(
        "bucket_sums_private",
        "#pragma omp critical\n",
        "",
        "sums of threads are joined without a lock",
    ),
    Bug(
        "bucket_sums_private",
        "own[buckets[i] * width + d] += x",
        "y[buckets[i] * width + d] += x",
        "all threads add into the result",
    ),
    Bug(
        "bucket_sums_private",
        "#pragma omp critical",
        "#pragma omp single",
        "the sums of one thread only are used",
    ),
    Bug(
        "bucket_sums_private",
        "own(16 * width, 0.0f)",
        "own(16 * width, 1e-3f)",
        "sums begin at 1e-3",
    ),
    Bug("bucket_sums_atomic", "#pragma omp atomic\n", "", "adds without atomics"),
)
