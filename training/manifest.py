"""What a folder was begun with, so that no command takes another one's results for its own.

For: going on with a folder. Who asks for what is in it may go on, or finds it finished; who asks
for something else is refused before anything is written.
Not covered: folders from before this was written down, which are gone on with as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cuagent.training.config import ConfigError
from cuagent.training.files import write_atomic

MANIFEST = "manifest.json"
CHANGEABLE = {
    *("minutes", "tokens_per_microbatch", "sharded", "recompute"),
    *("gpus", "beside", "cores", "ray", "server", "together", "judgements", "audited"),
    *("save_every", "evaluate_every", "stop_after", "on_alarm", "rollbacks", "limits"),
}
"""Settings that may change on the way: where it is computed, how often it is looked at."""
PRODUCTS = ("step-*", "model", "episodes/*.jsonl", "evaluation.json", "demonstrations/tokenizer")
MOST_NAMED = 3

Names = Mapping[str, Any]


def open_manifest(
    out: Path, command: str, inputs: Names, config: Names, first: bool = True
) -> Names | None:
    """What was written down of the folder, where something lies there that was made in the same
    way; else the `first` process writes it down now. `of` tells apart what it is made from.

    Raises ConfigError where something was made in another way.
    """
    path = out / MANIFEST
    now = json.loads(json.dumps({"command": command, "of": inputs, "settings": config}))
    if not has_results(out):
        if first:
            out.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(now))
        return None
    before: Names = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if "command" not in before:
        return None
    if other := differences(before, now):
        named, more = ", ".join(other[:MOST_NAMED]), len(other) - MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        raise ConfigError(f"{out} was made {named}; take another --out, or delete it")
    return before


def finish(out: Path, step: int) -> None:
    """Write down that all is there, up to a step."""
    path = out / MANIFEST
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if "command" in before:
        write_atomic(path, json.dumps(before | {"finished": step}))


def has_results(out: Path) -> bool:
    """Whether anything lies there that could be lost, or be taken for another command's."""
    # A file of begun episodes has a first line before there is any.
    played = (p.read_bytes().count(b"\n") > 1 for p in out.glob("episodes/*.incomplete"))
    return any(any(out.glob(product)) for product in PRODUCTS) or any(played)


def fixed_settings(config: Any, *excluded: str) -> dict[str, Any]:
    """All settings by their full names, but for those that may change, and `but`."""
    return {
        name: value
        for name, value in flatten(asdict(config), "").items()
        if name not in excluded and CHANGEABLE.isdisjoint(name.split("."))
    }


def flatten(found: Names, where: str) -> dict[str, Any]:
    names = dict[str, Any]()
    for name, value in found.items():
        nested = isinstance(value, Mapping)
        names |= flatten(value, f"{where}{name}.") if nested else {where + name: value}
    return names


def differences(before: Names, now: Names) -> list[str]:
    """In words, after "was made". A setting that only one of them knows is none."""
    if before["command"] != now["command"]:
        return [f"by train {before['command']}, not train {now['command']}"]
    inputs = [name for name in now["of"] if before["of"].get(name) != now["of"][name]]
    known = [name for name in now["settings"] if name in before["settings"]]
    return [f"from {'other' if name.endswith('s') else 'another'} {name}" for name in inputs] + [
        f"with {name}={format_value(was)}, not {format_value(asked)}"
        for name in known
        if (was := before["settings"][name]) != (asked := now["settings"][name])
    ]


def format_value(value: Any) -> str:
    """As `--set` takes it."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
