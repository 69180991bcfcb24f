"""Time float64 convolutions on a GPU with cuDNN and with torch's own kernels.

    python benchmarks/fp64_convolutions.py [--out FILE]

The oracle computes each reference in float64, which takes most of a verdict on transposed
convolutions. torch's own kernels unfold one sample at a time and multiply with cuBLAS, whose
products in float64 use tensor cores. Prints seconds, peak memory and the largest relative
difference. The layers are those of KernelBench problems; single calls, after one call that is not
timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

LAYERS: dict[str, tuple[str, tuple[int, ...]]] = {
    "L1/69": ("nn.ConvTranspose2d(64, 128, (3, 5))", (64, 64, 128, 256)),
    "L1/70": ("nn.ConvTranspose3d(48, 24, 3)", (8, 48, 96, 96, 96)),
    "L1/80": ("nn.Conv2d(32, 64, (5, 9), padding=(2, 4), dilation=(2, 3))", (8, 32, 512, 512)),
    "L1/82": ("nn.Conv2d(64, 64, 3, groups=64)", (16, 64, 512, 512)),
    "L2/42": ("nn.ConvTranspose2d(64, 128, 3)", (16, 64, 512, 512)),
    "L2/46": ("nn.Conv2d(64, 128, 3)", (128, 64, 128, 128)),
    "L2/78": ("nn.ConvTranspose3d(32, 64, 5, stride=2, padding=2)", (16, 32, 32, 32, 32)),
    "3-D": ("nn.Conv3d(8, 32, 3, padding=1)", (16, 8, 32, 64, 64)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for name, (text, shape) in LAYERS.items():
        rows.append({"problem": name, "layer": text, "input": shape} | _compared(text, shape))
        print(json.dumps(rows[-1]), flush=True)
    if given.out:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        given.out.write_text(json.dumps({"command": sys.argv, "rows": rows} | about, indent=1))


def _compared(text: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the figures of a layer with cuDNN and without it; of a failure its message."""
    torch.manual_seed(0)
    layer: nn.Module = eval(text, {"nn": nn}).cuda().double()
    x = torch.randn(shape, device="cuda", dtype=torch.float64)
    found: dict[str, Any] = {}
    results = []
    for label, enabled in (("cudnn", True), ("native", False)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            with torch.no_grad(), torch.backends.cudnn.flags(enabled=enabled):
                result = layer(x)
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                result = layer(x)
                end.record()
                end.synchronize()
        except RuntimeError as error:
            found[label] = {"error": str(error).splitlines()[0][:200]}
            continue
        peak = torch.cuda.max_memory_allocated() - before
        found[label] = {"seconds": start.elapsed_time(end) / 1e3, "peak_bytes": peak}
        results.append(result)
    if len(results) == 2:
        found["difference"] = ((results[0] - results[1]).abs().max() / results[0].std()).item()
    return found


if __name__ == "__main__":
    main()
