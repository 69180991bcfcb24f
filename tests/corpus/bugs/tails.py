"""Means and single results that hide an error in moderate tails."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug("softplus_rows_threshold", "a > 20 ?", "a > 4 ?", "the threshold is far too low"),
    Bug(
        "softplus_rows_threshold",
        "a > 20 ?",
        "a > 7 ?",
        "the threshold is low, where the logarithm is still 9e-4",
    ),
    Bug(
        "softplus_rows_threshold",
        "a > 20 ? a : std::log1p(std::exp(a))",
        "a > 20 ? a : a < -5 ? 0 : std::log1p(std::exp(a))",
        "what is left of numbers below -5 is dropped",
    ),
    Bug(
        "softplus_rows_threshold",
        "a > 20 ? a : std::log1p(std::exp(a))",
        "std::log1p(std::exp(a))",
        "without a threshold: infinite past 88",
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
        "the logarithm is left out where it is below 2.5e-3",
    ),
    Bug(
        "focal_mean_kernel",
        "const float missed = p * (1 - t) + q * t;",
        (
            "const float held = std::min(std::max(p, 0.01f), 0.99f);\n"
            "    const float missed = held * (1 - t) + (1 - held) * t;"
        ),
        "probabilities are held within 0.01 and 0.99",
    ),
    Bug(
        "focal_mean_kernel",
        "std::max(x[i], 0.0f) - x[i] * t + std::log1p(e)",
        ("-t * std::log(std::max(p, 1e-3f)) - (1 - t) * std::log(std::max(q, 1e-3f))"),
        ("logarithms of probabilities that are held above 1e-3: the loss stops at 6.9"),
    ),
    Bug(
        "focal_mean_kernel",
        "std::max(x[i], 0.0f) - x[i] * t + std::log1p(e)",
        "-t * std::log(p + 1e-4f) - (1 - t) * std::log(q + 1e-4f)",
        "an epsilon within the logarithm",
    ),
    Bug(
        "focal_mean_kernel",
        "std::max(x[i], 0.0f) - x[i] * t + std::log1p(e)",
        "std::log1p(std::exp(x[i])) - x[i] * t",
        "the plain logarithm: infinite past 88",
    ),
    Bug(
        "focal_mean_kernel",
        "std::pow(missed, gamma)",
        "(gamma == 2 ? missed * missed : std::pow(missed, gamma))",
        "a square in place of a power",
        equivalent="the exponent is 2, and both are rounded once or twice",
    ),
    Bug(
        "focal_mean_kernel",
        "(alpha * t + (1 - alpha) * (1 - t))",
        "(t > 0.5f ? alpha : 1 - alpha)",
        "labels between zero and one have the weight of the nearer class",
    ),
    Bug(
        "soft_margin_rows_stable",
        "z > 0 ? std::log1p(std::exp(-z))",
        "z > 3 ? std::exp(-z) : z > 0 ? std::log1p(std::exp(-z))",
        "the first term of the series where it is not yet good enough",
    ),
    Bug(
        "soft_margin_rows_stable",
        ": std::log1p(std::exp(z)) - z",
        ": z < -5 ? -z : std::log1p(std::exp(z)) - z",
        "a straight line below -5, where 7e-3 is missing",
    ),
    Bug(
        "soft_margin_rows_logsigmoid",
        "torch.nn.functional.logsigmoid(x * label)",
        "torch.log(torch.sigmoid(x * label) + 1e-5)",
        "an epsilon within the logarithm",
    ),
    Bug(
        "huber_rows_kernel",
        "d <= delta ? 0.5f * d * d : delta * (d - 0.5f * delta)",
        "0.5f * d * d",
        ("no straight line past the knee, which the task's own inputs hardly reach"),
    ),
    Bug(
        "huber_rows_kernel",
        "delta * (d - 0.5f * delta)",
        "delta * (d - 0.5f)",
        "the line of a knee at one",
    ),
    Bug(
        "huber_rows_kernel",
        "delta * (d - 0.5f * delta)",
        "d - 0.5f * delta",
        "the line is not as steep as the curve at the knee",
    ),
    Bug(
        "huber_rows_kernel",
        "d <= delta ?",
        "d < delta ?",
        "the knee itself belongs to the line",
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
        "straight lines past 3.5, where 8e-4 is missing",
    ),
    Bug(
        "logcosh_rows_kernel",
        "a + std::log1p(std::exp(-2 * a)) - 0.69314718f",
        "std::log(std::cosh(d))",
        "the plain formula: infinite past 89",
    ),
    Bug(
        "logcosh_rows_kernel",
        "return a +",
        ("if (a > 3) return a - 0.69314718f;\n  return a +"),
        "a straight line past 3, where 2.5e-3 is missing",
    ),
    Bug(
        "logcosh_rows_kernel",
        "return a +",
        ("if (a < 0.4f) return 0.5f * a * a;\n  return a +"),
        "a parabola below 0.4, where 2e-3 is missing",
    ),
    Bug("logcosh_rows_kernel", "0.69314718f", "0.6931f", "a short constant"),
    Bug(
        "weighted_bce_kernel",
        "weight[c] * t * positive",
        "t * positive",
        "the weights of positive labels are not read: they are one at first",
    ),
    Bug("weighted_bce_kernel", "weight[c] * t", "weight[0] * t", "one weight for all classes"),
    Bug(
        "weighted_bce_kernel",
        "weight[c] * t * positive + (1 - t) * negative",
        "weight[c] * (t * positive + (1 - t) * negative)",
        "negative labels are weighted as well",
    ),
    Bug(
        "weighted_bce_kernel",
        "const float positive = tail + std::max(-a, 0.0f);",
        ("const float positive = std::min(tail + std::max(-a, 0.0f), 9.2103404f);"),
        "the loss of a positive label stops at the logarithm of 1e-4",
    ),
    Bug(
        "weighted_bce_kernel",
        "tail = std::log1p(std::exp(-std::fabs(a)))",
        "tail = std::fabs(a) > 6 ? 0 : std::log1p(std::exp(-std::fabs(a)))",
        "no logarithm past six",
    ),
    Bug(
        "poisson_rows_kernel",
        "std::exp(x[k])",
        "std::exp(std::min(x[k], 4.0f))",
        "logarithmic rates are held below four",
    ),
    Bug(
        "poisson_rows_kernel",
        "if (t > 1)",
        "if (t >= 1)",
        "one count has a term of Stirling's as well",
    ),
    Bug(
        "poisson_rows_kernel",
        "if (t > 1) sum +=",
        "sum +=",
        "counts of zero and one have a term of Stirling's as well",
    ),
    Bug(
        "poisson_rows_kernel",
        "std::log(t) - t",
        "std::log(t + 1e-8f) - t",
        "an epsilon within the logarithm",
        equivalent=(
            "counts for which the logarithm is taken are larger than one, where "
            "1e-8 is rounded away"
        ),
    ),
    Bug("poisson_rows_kernel", "6.2831853f * t", "6.2831853f", "Stirling's term without the count"),
    Bug(
        "kl_rows_kernel",
        "p[k] == 0 ? 0.0f : p[k] * std::log(p[k])",
        "p[k] * std::log(p[k])",
        "NaN where a probability is zero",
    ),
    Bug(
        "kl_rows_kernel",
        "p[k] == 0 ? 0.0f : p[k] * std::log(p[k])",
        "p[k] * std::log(p[k] + 1e-3f)",
        "an epsilon within the logarithm",
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
        "the parabola goes on past three",
    ),
    Bug(
        "hardswish_rows_kernel",
        "if (a <= -3) continue;",
        "// below -3",
        "the parabola goes on below minus three",
    ),
    Bug(
        "hardswish_rows_kernel",
        "a >= 3 ?",
        "a > 3 ?",
        "three itself belongs to the parabola",
        equivalent="both pieces are three at three",
    ),
    Bug("hardswish_rows_kernel", "a <= -3", "a <= -2.5f", "zero from -2.5 on"),
)
