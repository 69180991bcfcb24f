"""Bugs that show only for parameters other than the initial ones."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "clip_logits_kernel",
        "std::exp(std::min(logit_scale[0], 4.6052f))",
        "std::exp(logit_scale[0])",
        "the scale has no limit of 100",
    ),
    Bug(
        "clip_logits_kernel",
        "std::exp(std::min(logit_scale[0], 4.6052f))",
        "std::min(std::exp(logit_scale[0]), 4.6052f)",
        "the scale is clamped at the logarithm of 100",
    ),
    Bug(
        "clip_logits_kernel",
        "std::exp(std::min(logit_scale[0], 4.6052f))",
        "std::exp(std::min(logit_scale[0], 4.0f))",
        "the scale is clamped at 55",
    ),
    Bug(
        "clip_logits_kernel",
        "std::exp(std::min(logit_scale[0], 4.6052f))",
        "std::exp(std::min(std::max(logit_scale[0], 0.0f), 4.6052f))",
        "the scale also has a lower limit of one",
    ),
    Bug(
        "clip_logits_kernel",
        "std::max(std::sqrt(sum), 1e-12f)",
        "std::sqrt(std::max(sum, 1e-24f))",
        "the smallest length is inside the root",
        equivalent="the root of 1e-24 is 1e-12",
    ),
    Bug(
        "gaussian_head_kernel",
        "std::min(std::max(log_var[d], -5.0f), 2.0f)",
        "std::max(log_var[d], -5.0f)",
        "large variances are not clamped",
    ),
    Bug(
        "gaussian_head_kernel",
        "std::min(std::max(log_var[d], -5.0f), 2.0f)",
        "std::min(log_var[d], 2.0f)",
        "small variances are not clamped",
    ),
    Bug(
        "gaussian_head_kernel",
        "std::min(std::max(log_var[d], -5.0f), 2.0f)",
        "log_var[d]",
        "variances are not clamped at all",
    ),
    Bug(
        "gaussian_head_kernel",
        "std::min(std::max(log_var[d], -5.0f), 2.0f)",
        "std::min(std::max(log_var[d], -5.0f), 5.0f)",
        "clamps to five on both sides",
    ),
    Bug(
        "gaussian_head_kernel",
        "sum += s +",
        "sum += log_var[d] +",
        "clamps only for the exponential",
    ),
    Bug(
        "gaussian_head_products",
        "self.log_var.clamp(-5, 2).double()",
        "self.log_var.double()",
        "variances are not clamped",
    ),
    Bug(
        "gaussian_head_products",
        "s.sum() +",
        "",
        "the sum of logarithms, initially zero, is omitted",
    ),
    Bug(
        "prelu_channels_kernel",
        "x[i] > 0 ? x[i] : a * x[i]",
        "(x[i] > a * x[i] ? x[i] : a * x[i])",
        "the larger of two numbers, which is right for slopes up to one",
    ),
    Bug(
        "prelu_channels_kernel", "slope[plane % channels]", "slope[0]", "one slope for all channels"
    ),
    Bug(
        "prelu_channels_kernel",
        "slope[plane % channels]",
        "0.25f",
        "uses the initial slope",
    ),
    Bug(
        "prelu_channels_kernel",
        "x[i] > 0 ? x[i] : a * x[i]",
        "x[i] >= 0 ? x[i] : a * x[i]",
        "zero is counted as positive",
        equivalent="the slope times zero is zero",
    ),
    Bug(
        "sink_softmax_kernel",
        "float sum = std::exp(extra - largest);",
        "float sum = std::exp(-largest);",
        "assumes a sink score of zero",
    ),
    Bug(
        "sink_softmax_kernel",
        "sink[i / length % heads]",
        "sink[i % heads]",
        "uses the sink of another head",
    ),
    Bug(
        "sink_softmax_kernel",
        "float sum = std::exp(extra - largest);",
        "float sum = extra;",
        ("the sink counts only if its score is not zero, and then without an exponential"),
    ),
    Bug(
        "router_bias_kernel",
        "float best = -INFINITY;",
        "float best = 0;",
        ("the best score starts at zero, so none is found if all biased scores are negative"),
    ),
    Bug(
        "router_bias_kernel",
        ("y[i * experts + at] = score[at];\n      sum += score[at];"),
        ("y[i * experts + at] = score[at] + bias[at];\n      sum += score[at] + bias[at];"),
        "the weights include the bias",
    ),
    Bug(
        "router_bias_kernel",
        "float best = -INFINITY;",
        "float best = -1;",
        "the best score starts at -1, so none is found if biases are below -2",
    ),
    Bug(
        "router_bias_kernel",
        "biased[at] = -INFINITY;",
        "biased[at] = -1;",
        ("a selected expert is marked with -1, and other scores can be lower"),
    ),
    Bug(
        "router_bias_kernel",
        "score[e] + bias[e];",
        "std::fmin(score[e] + bias[e], 1.0f);",
        "biased scores are clamped at one, like scores",
    ),
    Bug(
        "router_bias_kernel",
        "score[e] + bias[e];",
        "score[e] + std::fmin(std::fmax(bias[e], -1.0f), 1.0f);",
        "biases above one are clamped",
    ),
    Bug(
        "router_bias_kernel",
        "> best) best",
        "> best + 0) best",
        "zero is added",
        equivalent="nothing changes",
    ),
    Bug(
        "dead_zone_kernel",
        "std::fabs(a) > theta[d]",
        "a * a > theta[d] * theta[d]",
        "compares squares, which is wrong for negative thresholds",
    ),
    Bug(
        "dead_zone_kernel",
        "std::fabs(a) > theta[d]",
        "std::fabs(a) >= theta[d]",
        "keeps numbers that equal the threshold",
    ),
    Bug(
        "dead_zone_kernel",
        "theta[d] ? a : 0",
        "0.125f ? a : 0",
        "uses the initial threshold",
    ),
    Bug(
        "dead_zone_kernel",
        "theta[d] ? a : 0",
        "theta[d] ? a * (theta[d] > 0) : 0",
        "keeps nothing if the threshold is not positive",
    ),
    Bug(
        "snake_kernel",
        "std::sin(a * x[i]);",
        "a * x[i] * (1 - a * x[i] * a * x[i] / 6);",
        "uses two terms of the series",
    ),
    Bug(
        "snake_kernel",
        "s * s / (a + 1e-9f)",
        "s * s",
        "omits the division by the rate, which is initially one",
    ),
    Bug(
        "snake_kernel",
        "std::sin(a * x[i])",
        "std::sin(x[i])",
        "the rate is missing inside the sine",
    ),
    Bug(
        "snake_kernel",
        "rate[line % channels]",
        "std::fabs(rate[line % channels])",
        "assumes positive rates",
    ),
    Bug("rezero_kernel", "alpha[0] * z", "z", "the weight of the branch is omitted"),
    Bug(
        "rezero_kernel",
        "z / (1 + std::exp(-z))",
        "z * std::fmin(std::fmax(z / 6 + 0.5f, 0.0f), 1.0f)",
        "a hard swish instead of a swish",
    ),
    Bug(
        "rezero_kernel",
        "alpha[0] * z",
        "std::fmax(alpha[0], 0.0f) * z",
        "assumes a positive weight of the branch",
    ),
)
