"""Bugs whose error in moderate tails is hidden in means and single results."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug("softplus_rows_threshold", "a > 20 ?", "a > 4 ?", "the threshold is far too low"),
    Bug(
        "softplus_rows_threshold",
        "a > 20 ?",
        "a > 7 ?",
        "the threshold is too low: the logarithm is 9e-4 there",
    ),
    Bug(
        "softplus_rows_threshold",
        "a > 20 ? a : std::log1p(std::exp(a))",
        "a > 20 ? a : a < -5 ? 0 : std::log1p(std::exp(a))",
        "results for numbers below -5 are set to zero",
    ),
    Bug(
        "softplus_rows_threshold",
        "a > 20 ? a : std::log1p(std::exp(a))",
        "std::log1p(std::exp(a))",
        "no threshold, so infinite above 88",
    ),
    Bug(
        "softplus_rows_threshold",
        "a > 20 ?",
        "a > 18 ?",
        "a threshold of 18",
        equivalent=("the logarithm is 1.5e-8 there, less than half a unit in the last place of 18"),
    ),
    Bug(
        "softplus_rows_split",
        "torch.log1p(torch.exp(-x.abs()))",
        "torch.where(x.abs() < 6, torch.log1p(torch.exp(-x.abs())), 0)",
        "the logarithm is omitted if it is below 2.5e-3",
    ),
    Bug(
        "focal_mean_kernel",
        "const float missed = p * (1 - t) + q * t;",
        (
            "const float held = std::min(std::max(p, 0.01f), 0.99f);\n"
            "    const float missed = held * (1 - t) + (1 - held) * t;"
        ),
        "probabilities are clamped to 0.01 to 0.99",
    ),
    Bug(
        "focal_mean_kernel",
        "std::max(x[i], 0.0f) - x[i] * t + std::log1p(e)",
        ("-t * std::log(std::max(p, 1e-3f)) - (1 - t) * std::log(std::max(q, 1e-3f))"),
        ("probabilities have a lower limit of 1e-3, so the loss ends at 6.9"),
    ),
    Bug(
        "focal_mean_kernel",
        "std::max(x[i], 0.0f) - x[i] * t + std::log1p(e)",
        "-t * std::log(p + 1e-4f) - (1 - t) * std::log(q + 1e-4f)",
        "an epsilon inside the logarithm",
    ),
    Bug(
        "focal_mean_kernel",
        "std::max(x[i], 0.0f) - x[i] * t + std::log1p(e)",
        "std::log1p(std::exp(x[i])) - x[i] * t",
        "the plain logarithm, infinite above 88",
    ),
    Bug(
        "focal_mean_kernel",
        "std::pow(missed, gamma)",
        "(gamma == 2 ? missed * missed : std::pow(missed, gamma))",
        "a square instead of a power",
        equivalent="the exponent is 2, and both are rounded once or twice",
    ),
    Bug(
        "focal_mean_kernel",
        "(alpha * t + (1 - alpha) * (1 - t))",
        "(t > 0.5f ? alpha : 1 - alpha)",
        "labels between zero and one get the weight of the nearer class",
    ),
    Bug(
        "soft_margin_rows_stable",
        "z > 0 ? std::log1p(std::exp(-z))",
        "z > 3 ? std::exp(-z) : z > 0 ? std::log1p(std::exp(-z))",
        "uses the first term of the series where it is too inaccurate",
    ),
    Bug(
        "soft_margin_rows_stable",
        ": std::log1p(std::exp(z)) - z",
        ": z < -5 ? -z : std::log1p(std::exp(z)) - z",
        "linear below -5, where the error is 7e-3",
    ),
    Bug(
        "soft_margin_rows_logsigmoid",
        "torch.nn.functional.logsigmoid(x * label)",
        "torch.log(torch.sigmoid(x * label) + 1e-5)",
        "an epsilon inside the logarithm",
    ),
    Bug(
        "huber_rows_kernel",
        "d <= delta ? 0.5f * d * d : delta * (d - 0.5f * delta)",
        "0.5f * d * d",
        ("not linear beyond the knee, which the task's own inputs rarely reach"),
    ),
    Bug(
        "huber_rows_kernel",
        "delta * (d - 0.5f * delta)",
        "delta * (d - 0.5f)",
        "uses the line of a knee at one",
    ),
    Bug(
        "huber_rows_kernel",
        "delta * (d - 0.5f * delta)",
        "d - 0.5f * delta",
        "the slope of the line differs from the curve at the knee",
    ),
    Bug(
        "huber_rows_kernel",
        "d <= delta ?",
        "d < delta ?",
        "the knee belongs to the line",
        equivalent="both branches agree at the knee",
    ),
    Bug("huber_rows_clamped", "d.clamp(max=self.delta)", "d", "the knee is never reached"),
    Bug(
        "gelu_rows_kernel",
        "0.5f * x * (1 + std::erf(x * 0.70710678f))",
        "0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)))",
        "the approximation by a hyperbolic tangent",
    ),
    Bug(
        "gelu_rows_kernel",
        "0.5f * x * (1 + std::erf(x * 0.70710678f))",
        "x / (1 + std::exp(-1.702f * x))",
        "the approximation by a sigmoid",
    ),
    Bug(
        "gelu_rows_kernel",
        "return 0.5f",
        ("if (x > 3.5f) return x;\n  if (x < -3.5f) return 0;\n  return 0.5f"),
        "linear beyond 3.5, where the error is 8e-4",
    ),
    Bug(
        "logcosh_rows_kernel",
        "a + std::log1p(std::exp(-2 * a)) - 0.69314718f",
        "std::log(std::cosh(d))",
        "the plain formula, infinite above 89",
    ),
    Bug(
        "logcosh_rows_kernel",
        "return a +",
        ("if (a > 3) return a - 0.69314718f;\n  return a +"),
        "linear beyond 3, where the error is 2.5e-3",
    ),
    Bug(
        "logcosh_rows_kernel",
        "return a +",
        ("if (a < 0.4f) return 0.5f * a * a;\n  return a +"),
        "a parabola below 0.4, where the error is 2e-3",
    ),
    Bug("logcosh_rows_kernel", "0.69314718f", "0.6931f", "a constant with too few digits"),
    Bug(
        "weighted_bce_kernel",
        "weight[c] * t * positive",
        "t * positive",
        "the weights of positive labels, initially one, are not read",
    ),
    Bug("weighted_bce_kernel", "weight[c] * t", "weight[0] * t", "one weight for all classes"),
    Bug(
        "weighted_bce_kernel",
        "weight[c] * t * positive + (1 - t) * negative",
        "weight[c] * (t * positive + (1 - t) * negative)",
        "negative labels are also weighted",
    ),
    Bug(
        "weighted_bce_kernel",
        "const float positive = tail + std::max(-a, 0.0f);",
        ("const float positive = std::min(tail + std::max(-a, 0.0f), 9.2103404f);"),
        "the loss of a positive label ends at the logarithm of 1e-4",
    ),
    Bug(
        "weighted_bce_kernel",
        "tail = std::log1p(std::exp(-std::fabs(a)))",
        "tail = std::fabs(a) > 6 ? 0 : std::log1p(std::exp(-std::fabs(a)))",
        "no logarithm above six",
    ),
    Bug(
        "poisson_rows_kernel",
        "std::exp(x[k])",
        "std::exp(std::min(x[k], 4.0f))",
        "logarithmic rates are clamped at four",
    ),
    Bug(
        "poisson_rows_kernel",
        "if (t > 1)",
        "if (t >= 1)",
        "a count of one also gets Stirling's term",
    ),
    Bug(
        "poisson_rows_kernel",
        "if (t > 1) sum +=",
        "sum +=",
        "counts of zero and one also get Stirling's term",
    ),
    Bug(
        "poisson_rows_kernel",
        "std::log(t) - t",
        "std::log(t + 1e-8f) - t",
        "an epsilon inside the logarithm",
        equivalent=(
            "the logarithm is used only for counts larger than one, where 1e-8 is rounded away"
        ),
    ),
    Bug("poisson_rows_kernel", "6.2831853f * t", "6.2831853f", "Stirling's term without the count"),
    Bug(
        "kl_rows_kernel",
        "p[k] == 0 ? 0.0f : p[k] * std::log(p[k])",
        "p[k] * std::log(p[k])",
        "NaN if a probability is zero",
    ),
    Bug(
        "kl_rows_kernel",
        "p[k] == 0 ? 0.0f : p[k] * std::log(p[k])",
        "p[k] * std::log(p[k] + 1e-3f)",
        "an epsilon inside the logarithm",
    ),
    Bug(
        "kl_rows_kernel",
        "p[k] == 0 ? 0.0f :",
        "p[k] < 1e-3f ? 0.0f :",
        "small probabilities count as zero in one of two terms",
    ),
    Bug(
        "hardswish_rows_kernel",
        "a >= 3 ? a : a * (a + 3) / 6",
        "a * (a + 3) / 6",
        "the parabola continues above three",
    ),
    Bug(
        "hardswish_rows_kernel",
        "if (a <= -3) continue;",
        "// below -3",
        "the parabola continues below minus three",
    ),
    Bug(
        "hardswish_rows_kernel",
        "a >= 3 ?",
        "a > 3 ?",
        "three belongs to the parabola",
        equivalent="both pieces are three at three",
    ),
    Bug("hardswish_rows_kernel", "a <= -3", "a <= -2.5f", "zero below -2.5"),
)
