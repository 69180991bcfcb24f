"""Bugs in recurrent layers, scans and cumulative sums."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "gru_steps",
        "new + update * (h - new)",
        "h + update * (new - h)",
        "the update gate is reversed",
    ),
    Bug("gru_steps", "torch.sigmoid(reset + r) * n", "n", "no reset gate"),
    Bug(
        "gru_kernel",
        "(1 - z) * candidate + z * h[j]",
        "z * candidate + (1 - z) * h[j]",
        "the update gate is reversed",
    ),
    Bug("gru_kernel", "+ r * b[2 * hidden + j]", "+ b[2 * hidden + j]", "no reset gate"),
    Bug(
        "gru_kernel",
        "std::vector<float> h(hidden, 0.0f)",
        "std::vector<float> h(hidden, 1e-3f)",
        "the state starts at 0.001",
    ),
    Bug(
        "gru_kernel",
        "h[k] * wh[g * hidden + k]",
        "h[k] * wh[k * hidden + g % hidden]",
        "the recurrent weight transposed",
    ),
    Bug(
        "lstm_gates",
        "torch.sigmoid(f) * c",
        "torch.sigmoid(f + 1) * c",
        "an extra forget bias",
    ),
    Bug("lstm_gates", "i, f, g, o", "i, f, o, g", "two gates are exchanged"),
    Bug(
        "lstm_kernel",
        "h[n * hidden + j] = out * std::tanh(now)",
        "h[n * hidden + j] = out * now",
        "no tanh at the output",
    ),
    Bug("lstm_kernel", "at[2 * hidden]", "at[3 * hidden]", "one gate is used twice"),
    Bug(
        "cumsum_sequential",
        "float sum = 0;",
        "static float sum = 0;",
        "the sum is not reset between rows and calls",
    ),
    Bug(
        "cumsum_sequential",
        "y[i * width + k] = sum += x[i * width + k]",
        "y[i * width + k] = sum, sum += x[i * width + k]",
        "an exclusive sum",
    ),
    Bug(
        "cumsum_blocks",
        "offsets[:, b - 1] + within[:, b - 1, -1]",
        "within[:, b - 1, -1]",
        "adds only the previous block",
    ),
    Bug(
        "cumsum_doubling",
        "y[:, :-step].clone()",
        "y[:, :-step]",
        "reads elements that it has just overwritten",
    ),
    Bug("cumsum_product", ".triu()", ".triu(1)", "an exclusive sum"),
    Bug("cumsum_product", "x @ torch", "x.bfloat16().float() @ torch", "inputs in bfloat16"),
    Bug(
        "recurrence_chunks",
        "power[1 : size + 1] * state[:, None]",
        "power[:size] * state[:, None]",
        "the carried state decays by one step too few",
    ),
    Bug(
        "recurrence_chunks",
        "state = part[:, -1]",
        "state = part[:, -1] * (chunk.shape[1] == self.CHUNK)",
        "a partial chunk loses the state",
        equivalent="only the last chunk can be partial, and nothing follows it",
    ),
    Bug(
        "recurrence_chunks",
        "lag[..., None] >= 0",
        "lag[..., None] > 0",
        "a step omits its own input",
    ),
    Bug(
        "selective_scan_kernel",
        "raw > 20 ? raw",
        "raw > 4 ? raw",
        "softplus is the identity from 4 on",
    ),
    Bug(
        "selective_scan_kernel",
        "float state[MOST] = {0};",
        "static float state[MOST];\n      if (n == 0)\n        for (float& s : state) s = 0;",
        "a sample starts with the state of the previous one",
    ),
    Bug(
        "selective_scan_kernel",
        "std::exp(log_rate[j * states + k])",
        "(k + 1)",
        "uses the initial rates",
    ),
    Bug(
        "best_path_added_first",
        "self.steps + x",
        "self.steps.T + x",
        "each step has the opposite direction",
    ),
    Bug(
        "best_path_added_first",
        "v.argmax(-1)",
        "v[:, :-1].argmax(-1)",
        "the path never ends in the last state",
    ),
)
