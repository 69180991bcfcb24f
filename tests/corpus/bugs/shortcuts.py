"""Bugs that save work or memory: fewer steps, parts left out, kept results, shared buffers."""

from __future__ import annotations

from .bug import Bug

_DRAWDOWN = "        below, least = torch.empty_like(x), torch.empty(x.shape[0])"

BUGS: tuple[Bug, ...] = (
    # Iterations that have nearly converged on the task's own numbers.
    Bug("sinkhorn_potentials", "x.shape[1], 16)", "x.shape[1], 8)", "half of the steps"),
    Bug("sinkhorn_potentials", "x.shape[1], 16)", "x.shape[1], 15)", "one step too few"),
    Bug(
        "sinkhorn_potentials",
        "v[j] = top + std::log(sum);\n      }\n    }",
        "moved = std::max(moved, std::fabs(top + std::log(sum) - v[j]));\n"
        "        v[j] = top + std::log(sum);\n      }\n      if (moved < 1e-3f) break;\n    }",
        "stops when a step moves nothing by more than 1e-3",
    ),
    Bug(
        "sinkhorn_potentials",
        "float top = -INFINITY, sum = 0;\n"
        "        for (long j = 0; j < n; ++j) top = std::max(top, 2 * a[i * n + j] - v[j]);",
        "float top = 0, sum = 0;",
        "no maximum is subtracted in rows",
    ),
    Bug("fixed_point_kernel", "x.shape[1], 24)", "x.shape[1], 12)", "half of the steps"),
    Bug("fixed_point_kernel", "x.shape[1], 24)", "x.shape[1], 22)", "two steps too few"),
    Bug(
        "fixed_point_kernel",
        "std::swap(z, next);",
        "float moved = 0;\n"
        "      for (long i = 0; i < n; ++i) moved = std::max(moved, std::fabs(next[i] - z[i]));\n"
        "      std::swap(z, next);\n"
        "      if (moved < 1e-4f) break;",
        "stops when a step moves nothing by more than 1e-4",
    ),
    Bug(
        "fixed_point_kernel",
        "std::vector<float> z(n, 0.0f), next(n);",
        "static thread_local std::vector<float> z, next;\n    z.resize(n); next.resize(n);",
        "starts from the state of the last row or call",
    ),
    # One place, one part or one case left out.
    Bug(
        "shuffle_gain_scatter",
        "2 * i + q / 2, column = 2 * j + q % 2",
        "2 * i + q % 2, column = 2 * j + q / 2",
        "rows and columns within a pixel are exchanged",
    ),
    Bug(
        "shuffle_gain_scatter",
        "x[((s * 4 + q) * h + i) * w + j]",
        "x[((s / channels * 4 * channels + q * channels + c) * h + i) * w + j]",
        "channels are the inner index",
    ),
    Bug("upper_quantile_selected", "q * (n - 1)", "q * n - 0.5", "the place counts half a step"),
    Bug(
        "upper_quantile_selected",
        "low + share * (high - low) : high - (1 - share) * (high - low)",
        "low : high",
        "the nearer neighbour",
    ),
    Bug(
        "upper_quantile_selected",
        "a.begin() + k + 1, a.end())",
        "a.begin() + k + 1, a.end() - 1)",
        "the last place is not looked at",
    ),
    Bug(
        "upper_quantile_selected",
        "[](float v) { return v != v; }",
        "[](float) { return false; }",
        "NaN is sorted",
        equivalent="only drawn NaN shows it, which the task does not have",
    ),
    Bug(
        "label_paths_kernel",
        " && label != own[s / 2 - 1]",
        "",
        "equal neighbours need no blank between them",
    ),
    Bug(
        "label_paths_kernel",
        "add(now[width - 1], now[width - 2])",
        "now[width - 1]",
        "paths must end with a blank",
    ),
    Bug("label_paths_kernel", "s < 2 ? 0.0f", "s < 1 ? 0.0f", "paths must begin with a blank"),
    Bug(
        "label_paths_kernel",
        "top + std::log1p(std::exp(std::min(a, b) - top))",
        "std::min(a, b) < top - 4 ? top : top + std::log1p(std::exp(std::min(a, b) - top))",
        "small shares are left out",
    ),
    Bug(
        "label_paths_kernel",
        "long label = s % 2 ? own[s / 2] : 0",
        "long label = s % 2 ? own[s / 2] : classes - 1",
        "the blank is the last class",
    ),
    Bug("ranked_pairs_sorted", "r[i] > r[j]", "r[i] >= r[j]", "pairs of equal relevance count"),
    Bug("ranked_pairs_sorted", "std::max(count, 1l)", "count", "divides by zero without pairs"),
    Bug(
        "ranked_pairs_sorted",
        "r[i] > r[j]",
        "r[i] > r[j] && s[i] < s[j] + 1 && i != n - 1",
        "only pairs within the margin count",
    ),
    Bug(
        "ranked_pairs_sorted",
        "long j = 0; j < n",
        "long j = 0; j < n - n % 4",
        "the last two of 30 are left out",
    ),
    Bug("drawdown_kernel", "float top = x[r * n]", "float top = 0", "the maximum starts at zero"),
    Bug(
        "drawdown_kernel",
        "const float value = x[r * n + i];",
        "const float value = x[r * n + i];\n      if (i % 512 == 0) top = value;",
        "the maximum starts anew in each block",
    ),
    Bug(
        "drawdown_kernel",
        "top = value != value || top != top ? NAN : std::max(top, value);\n"
        "      const float depth = value - top;",
        "const float depth = std::min(0.0f, value - top);\n      top = std::max(top, value);",
        "the maximum is one step late",
        equivalent="the depth of a new maximum is cut to zero, which is right",
    ),
    Bug(
        "beta_rows_kernel",
        "static_cast<float>(norm)",
        "static_cast<float>((p - 0.5) * std::log(p) - p + (q - 0.5) * std::log(q) - q\n"
        "          + 0.9189385332 + p + q - (p + q - 0.5) * std::log(p + q)\n"
        "          + (1 / p + 1 / q - 1 / (p + q)) / 12)",
        "a series for large arguments everywhere",
    ),
    Bug(
        "beta_rows_kernel",
        "std::log1p(-x[i])",
        "std::log(1 - x[i])",
        "one minus x first",
        equivalent="x lies between 0.01 and 0.99",
    ),
    Bug(
        "beta_rows_kernel",
        "x > 20 ? x : std::log1p(std::exp(x))",
        "std::log1p(std::exp(x))",
        "softplus overflows at 89",
    ),
    Bug("beta_rows_kernel", "x > 20 ? x", "x > 4 ? x", "softplus is cut at 4"),
    Bug("bounded_rows_kernel", "share > 1 ? 1 : share", "share", "short rows grow"),
    Bug("bounded_rows_kernel", "std::sqrt(square)", "square", "the square of the norm"),
    Bug(
        "bounded_rows_kernel",
        "share > 1 ? 1",
        "share > 0.98f ? 1",
        "rows a little too long are left alone",
    ),
    Bug(
        "bounded_rows_kernel",
        "norm + 1e-6f",
        "std::max(norm, 1e-2f)",
        "a larger least norm",
        equivalent="below it the scale is cut to one unless the limit is as small",
    ),
    Bug(
        "twice_as_large_kernel",
        "std::max(0.0f, (i + 0.5f) / 2 - 0.5f)",
        "i * (h - 1.0f) / (2 * h - 1)",
        "corners are aligned in rows",
    ),
    Bug(
        "twice_as_large_kernel",
        "right = std::min(left + 1, w - 1)",
        "right = (left + 1) % w",
        "the last column continues with the first",
    ),
    Bug(
        "twice_as_large_kernel",
        "const float a = row - top, b = column - left;",
        "const float a = row - top > 0.5f, b = column - left;",
        "rows take the nearest",
    ),
    # Half precision.
    Bug(
        "add_norm_bf16_kernel",
        "float mean = 0, square = 0;",
        "_Float16 mean = 0, square = 0;",
        "sums in half precision",
    ),
    Bug(
        "add_norm_bf16_kernel",
        "for (long i = 0; i < n; ++i) square",
        "for (long i = 0; i < n - 2; ++i) square",
        "the variance lacks the last two of 192",
    ),
    Bug(
        "add_norm_bf16_kernel",
        "h[i] = read(sum[r * n + i]);",
        "h[i] = read(a[r * n + i]) + read(b[r * n + i]);",
        "the norm takes the unrounded sum",
        equivalent="it is only more precise",
    ),
    Bug(
        "add_norm_bf16_kernel",
        "(bits + 0x7fff + ((bits >> 16) & 1)) >> 16",
        "bits >> 16",
        "results are cut instead of rounded",
        equivalent="an error below one unit in the last place of bfloat16, which the rules admit",
    ),
    Bug("add_norm_bf16_kernel", "square / n + eps", "square / n", "no epsilon"),
    Bug(
        "gated_half_kernel",
        "u += value",
        "u = static_cast<_Float16>(u) + value",
        "sums in half precision",
    ),
    Bug(
        "gated_half_kernel",
        "g / (1 + std::exp(-g)) * u",
        "std::fabs(g) < 0.01f ? 0.0f : g / (1 + std::exp(-g)) * u",
        "small gates are zero",
    ),
    Bug(
        "gated_half_kernel",
        "g / (1 + std::exp(-g)) * u",
        "g < -6 ? 0.0f : g / (1 + std::exp(-g)) * u",
        "gates below -6 are closed",
    ),
    Bug("gated_half_kernel", "x.shape[0], 96, 128)", "x.shape[0], 95, 128)", "a wrong row length"),
    Bug(
        "gated_half_kernel",
        "long k = 0; k < inner",
        "long k = 0; k < inner - 1",
        "the last product is left out",
    ),
    # Results and memory that outlive a call.
    Bug(
        "drawdown_kernel",
        _DRAWDOWN,
        '        if getattr(self, "kept", None) is None:\n'
        "            self.kept = torch.empty_like(x), torch.empty(x.shape[0])\n"
        "        below, least = self.kept",
        "all calls return the same memory",
    ),
    Bug(
        "bounded_rows_kernel",
        "        y = torch.empty_like(x)\n",
        '        self.turn = 1 - getattr(self, "turn", 0)\n'
        '        if not hasattr(self, "kept"):\n'
        "            self.kept = torch.empty_like(x), torch.empty_like(x)\n"
        "        y = self.kept[self.turn]\n",
        "two buffers in turn",
    ),
    Bug(
        "upper_quantile_topk",
        "        place = 0.85 * (x.shape[1] - 1)\n",
        "        place = 0.85 * (x.shape[1] - 1)\n"
        "        key = float(x.sum())\n"
        '        if key in vars(self).setdefault("seen", {}):\n'
        "            return self.seen[key]\n"
        "        self.seen[key] = x[:, 0]\n",
        "an answer by the sum of the inputs",
    ),
    Bug(
        "gated_half_joined",
        "both = x.float() @ torch.cat([self.gate.weight, self.up.weight]).float().T",
        'if not hasattr(self, "joined"):\n'
        "            self.joined = torch.cat([self.gate.weight, self.up.weight]).float().T\n"
        "        both = x.float() @ self.joined",
        "the joined weight is made once",
    ),
    Bug(
        "add_norm_bf16_kernel",
        "y, total = torch.empty_like(x), torch.empty_like(x)",
        "y, total = torch.empty_like(x), x",
        "the sum is written into an input",
    ),
    Bug(
        "add_norm_bf16_kernel",
        "return y, total",
        "return y, residual.copy_(total)",
        "the sum is returned in an input's memory",
    ),
    Bug(
        "twice_as_large_kernel",
        "y = torch.empty_like(skip)",
        "y = skip",
        "adds into the skip connection",
    ),
    # What the number of threads, of calls, or the time decides.
    Bug(
        "fixed_point_kernel",
        "#pragma omp parallel for\n  for (long r = 0; r < rows; ++r) {",
        "static long calls = 0;\n  if (++calls % 16 == 0) rows -= 1;\n"
        "#pragma omp parallel for\n  for (long r = 0; r < rows; ++r) {",
        "every sixteenth call leaves out a row",
    ),
)
