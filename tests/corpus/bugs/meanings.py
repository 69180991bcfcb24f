"""More bugs in the meaning of an operation: steps, bits, spectra, limits and shared weights."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug("quartiles_sorted", "torch.lerp(before, after, place - low)", "before", "takes the lower"),
    Bug(
        "quartiles_sorted",
        "(x.shape[-1] - 1)\n",
        "x.shape[-1]\n",
        "places the shares on n instead of n - 1 steps",
    ),
    Bug(
        "quartiles_sorted",
        "place = self.shares * (x.shape[-1] - 1)",
        "place = x.new_tensor([0.25, 0.5, 0.9]) * (x.shape[-1] - 1)",
        "uses the shares of a new module",
    ),
    Bug("unit_weights_scaled", "square().sum(1)", "square().sum(0)", "norm of columns"),
    Bug(
        "unit_weights_scaled",
        ".square().sum(1).sqrt()",
        ".square().sum(1).add(1e-3).sqrt()",
        "an epsilon that the reference does not have",
    ),
    Bug(
        "unit_weights_scaled",
        "torch.addcmul(self.bias, x @ self.v.T, scale)",
        "(x @ self.v.T + self.bias) * scale",
        "scales the bias too",
    ),
    Bug("nibble_linear_kernel", "k % 2 ?", "k % 2 == 0 ?", "the other order of the two digits"),
    Bug(
        "nibble_linear_kernel",
        "scale[o * (width / group) + g]",
        "scale[o * (width / group) + g / 2 * 2]",
        "one scale for two groups",
    ),
    Bug("packed_flags_kernel", "1 << k", "128 >> k", "the other order of the bits"),
    Bug("packed_flags_kernel", "at < length && ", "", "reads past the end of the row"),
    Bug(
        "packed_flags_kernel",
        "b < bytes; ++b",
        "b < length / 8; ++b",
        "leaves out the short last byte",
    ),
    Bug(
        "signed_hash_kernel",
        "int64_t(uint64_t(id) * 2654435761u)",
        "int64_t(uint32_t(uint32_t(id) * 2654435761u))",
        "multiplies in 32 bits",
        equivalent="the bucket and the sign come from the low bits",
    ),
    Bug(
        "signed_hash_kernel",
        "rest < 0 ? rest + buckets : rest",
        "rest < 0 ? -rest : rest",
        "mirrors negative buckets",
        equivalent="products of identifiers below 2^31 are positive",
    ),
    Bug("signed_hash_kernel", "(mixed >> 16) & 1", "(mixed >> 17) & 1", "another bit for the sign"),
    Bug(
        "cell_maxima_kernel",
        "if (!hit[k] || v > y[i * many + k] || v != v)",
        "if (v > y[i * many + k] || v != v)",
        "includes the floor in the maximum",
    ),
    Bug(
        "overlap_add_kernel",
        "weight += window[at] * window[at];",
        "weight += window[at];",
        "divides by the sum of the window",
    ),
    Bug(
        "overlap_add_kernel",
        "at < 0 || at >= size",
        "at <= 0 || at >= size",
        "leaves out the first sample of each frame",
    ),
    Bug(
        "suppressed_boxes_kernel",
        "if (!kept[k]) continue;\n",
        "",
        "a suppressed box suppresses others",
    ),
    Bug(
        "suppressed_boxes_kernel",
        "return std::max(high - low, 0.0f);",
        "return high - low;",
        "boxes that do not overlap have a positive overlap if both sides are negative",
    ),
    Bug(
        "sinc_filter_where",
        "torch.where(is_zero, torch.ones_like(angle), safe.sin() / safe)",
        "safe.sin() / safe",
        "the value for 1 instead of 0 at zero",
    ),
    Bug(
        "sinc_filter_where",
        "is_zero = angle == 0",
        "is_zero = angle.abs() < 1e-2",
        "replaces small arguments too",
    ),
    Bug("sinc_filter_where", "torch.pi * (x * self.rate)", "x * self.rate", "the other convention"),
    Bug(
        "complex_gain_parts",
        "a * c + b * d, b * c - a * d",
        "a * c - b * d, b * c + a * d",
        "no conjugate, which a gain of one hides",
    ),
    Bug(
        "complex_gain_parts", "(real * real + imag * imag)", "(real + imag).square()", "not a power"
    ),
    Bug(
        "last_known_kernel",
        "known[i] == 0",
        "value[i] == 0",
        "a last number of zero is passed over",
    ),
    Bug("last_known_kernel", "if (v != v) continue;", "if (v != v && j > 0) continue;", "NaN at 0"),
    Bug("last_known_kernel", "if (v != v) continue;\n", "", "NaN counts as a number"),
    Bug("bounded_weights_min_max", "new_tensor(-0.5)", "new_tensor(-0.75)", "another lower limit"),
    Bug(
        "phase_steps_kernel",
        "std::floor((row[j] - row[j - 1] + turn / 2) / turn)",
        "std::ceil((row[j] - row[j - 1] - turn / 2) / turn)",
        "half a turn up is kept, half a turn down is not",
    ),
    Bug(
        "phase_steps_kernel",
        "std::floor((row[j] - row[j - 1] + turn / 2) / turn)",
        "std::round((row[j] - row[j - 1]) / turn)",
        "half a turn down is removed",
    ),
    Bug(
        "phase_steps_kernel",
        "std::floor(",
        "std::trunc(",
        "truncates negative turns",
    ),
    Bug(
        "phase_steps_kernel",
        "    float turns = 0;\n",
        "    static float turns;\n    if (i == 0) turns = 0;\n",
        "carries the turns of a row into the next one",
    ),
    Bug(
        "spectral_gate_summed",
        "power.mean(-1, keepdim=True) * self.gain",
        "power.mean(-1, keepdim=True) * self.gain.abs()",
        "ignores the sign of a gain",
    ),
    Bug(
        "spectral_gate_summed",
        "power.mean(-1, keepdim=True)",
        "x.square().sum(-1, keepdim=True) / x.shape[-1]",
        "the mean power of all frequencies instead of the half",
    ),
    Bug(
        "spectral_gate_summed", "return spectrum * kept", "return spectrum * kept.all(0)", "all(0)"
    ),
    Bug("first_match_kernel", "        break;\n", "", "the last row that matches"),
    Bug("first_match_kernel", "y[i] = rows;", "y[i] = 0;", "the first row if none matches"),
    Bug("first_match_kernel", "j < width; ++j", "j < width - 1; ++j", "one place is not compared"),
    Bug("clipped_update_scaled", "torch.ones_like(norm))", "2 * torch.ones_like(norm))", "limit"),
    Bug(
        "clipped_update_scaled",
        "share = torch.minimum((norm + 1e-6).reciprocal(), torch.ones_like(norm))",
        "share = (norm + 1e-6).reciprocal()",
        "scales small gradients up",
    ),
    Bug(
        "clipped_update_scaled",
        "return torch.addcmul(weight, gradient, self.rate * share, value=-1.0), norm",
        "return weight.sub_(self.rate * share * gradient), norm",
        "moves the given weights in place",
    ),
    Bug(
        "tied_heads_products",
        "        self.out.weight = self.shared.weight\n",
        "",
        "the second weight is separate",
        equivalent="a state dict holds both names, with equal values",
    ),
    Bug("tied_heads_products", " * self.mask", "", "ignores a mask of ones"),
    Bug(
        "tied_heads_products",
        "torch.addmm(self.out.bias, (x @ weight).tanh() * self.mask, weight)",
        "torch.addmm(self.out.bias * self.mask, (x @ weight).tanh(), weight)",
        "applies the mask to the bias",
    ),
)
