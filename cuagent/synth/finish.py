"""Write the outputs of a finished run: the parquet file and the data card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuagent.synth.card import write_card, yields
from cuagent.synth.dataset import row_of, write_set
from cuagent.synth.run import LIBRARIES, Settings
from cuagent.synth.shards import Record, Shards

FILE = "tasks.parquet"


def write_outputs(
    settings: Settings, out: Path, accepted: Sequence[Record], rates: tuple[float, float], name: str
) -> Path:
    """Write the parquet file of the accepted records and the data card; return the path of the
    parquet file.

    `rates`: the device's memory rate in bytes per second and arithmetic rate in FLOP per second.
    `name`: name of the device.
    """
    identity = settings.identity()
    about = {
        "generator": identity["generator"],
        "torch": identity["torch"],
        **{name: identity[name] or "not installed" for name in LIBRARIES},
        "command": settings.command(),
        "seed": settings.seed,
        "device": name,
        "compose": settings.compose,
        "kernelbench": "checked" if settings.kernelbench else "not checked",
        "torch.compile": "checked" if settings.compile else "not checked",
    }
    kept: list[dict[str, Any]] = []

    def rows() -> Iterator[dict[str, Any]]:
        for record in accepted:
            row = row_of(record, identity, name, rates)
            kept.append({name: value for name, value in row.items() if name != "code"})
            yield row

    path = out / FILE
    write_set(rows(), path, about | {"settings": identity})
    last = max((record["index"] for record in accepted), default=-1)
    reasons, seconds = [], Counter[str]()
    for record in Shards(out).read():
        if record["index"] <= last:
            reasons.append(record.get("reason"))
            seconds.update(record.get("stages") or {})
    about |= {"seconds for each task": _means(seconds, len(accepted))}
    write_card(kept, yields(reasons), about, out)
    return path


def _means(seconds: Mapping[str, float], tasks: int) -> str:
    """Return as text, for each stage, its seconds over all candidates divided by the number of
    accepted tasks."""
    return ", ".join(f"{name} {value / max(1, tasks):.2f}" for name, value in seconds.items())
