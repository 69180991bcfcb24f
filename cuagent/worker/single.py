"""One call of a candidate in a process of its own: what a debugging tool is put around.

    python single.py FOLDER

The folder holds the attempt, `order.json` and `data.pt` (inputs and weights). Nothing is compared;
the exit code says whether the call came to its end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(folder: Path) -> None:
    import torch

    from cuagent.task import unflatten
    from cuagent.worker.arms import Order, import_arm, set_precision

    order = Order.from_json(json.loads((folder / "order.json").read_text()))
    data = torch.load(folder / "data.pt", map_location=order.device.value, weights_only=True)
    set_precision(order.precision)
    model = import_arm(order, folder)()
    model.load_state_dict(dict(zip(order.state, data["weights"], strict=True)))
    with torch.no_grad():
        model(*unflatten(data["inputs"], order.inputs))
    torch.cuda.synchronize()


if __name__ == "__main__":
    # Run by path and with -I: the folder that holds cuagent is not on it.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    main(Path(sys.argv[1]))
