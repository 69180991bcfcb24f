"""Record the settings and inputs from which a folder was made, in its file `manifest.json`.

A command with the same inputs and settings resumes the folder, or finds it finished. A command with
other inputs or settings is refused before it writes anything.
Not covered: folders without a manifest, which are resumed as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cuagent.record import RecordError, refuse_links
from cuagent.training.config import ConfigError
from cuagent.training.files import write_atomic

MANIFEST = "manifest.json"
CHANGEABLE = {
    *("minutes", "tokens_per_microbatch", "sharded", "recompute", "packed"),
    *("gpus", "beside", "cores", "ray", "server", "together", "judgements", "audited"),
    *("at_once", "most_rows", "cache_tokens"),
    *("save_every", "stop_after", "on_alarm", "rollbacks", "limits"),
}
"""Settings that may change when a run is resumed, such as devices, memory limits, and how often to
save."""
PRODUCTS = ("step-*", "model", "episodes/*.jsonl", "evaluation.json", "demonstrations/tokenizer")
"""Glob patterns of files and folders that exist only if a folder has results."""
MOST_NAMED = 3
"""Largest number of differences that an error message lists."""

Names = Mapping[str, Any]


def open_manifest(
    out: Path, command: str, inputs: Names, config: Names, first: bool = True
) -> Names | None:
    """Check the manifest of a folder with results and return it; for a folder without results,
    write a manifest and return None.

    `inputs`: fingerprints of the data that the results depend on, by name. `first`: True in the
    process that may write. Results without a manifest also return None. Raises ConfigError if the
    results were made with other inputs or settings, or if the folder contains a link.
    """
    try:
        refuse_links(out)
    except RecordError as error:
        raise ConfigError(str(error)) from error
    path = out / MANIFEST
    now = json.loads(json.dumps({"command": command, "of": inputs, "settings": config}))
    if not has_results(out):
        if first:
            out.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(now))
        return None
    before = _read(path)
    if "command" not in before:
        return None
    if other := differences(before, now):
        named, more = ", ".join(other[:MOST_NAMED]), len(other) - MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        raise ConfigError(f"{out} was made {named}; use another --out, or delete it")
    return before


def _read(path: Path) -> Names:
    """Return the content of the manifest at `path`; {} if the file does not exist.

    Raises ConfigError if the content is not a valid manifest: the folder may come from a stranger's
    repository.
    """
    if not path.exists():
        return {}
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no manifest of cuagent; delete it") from error
    tables = [found, *(found.get(name, {}) for name in ("of", "settings"))] if found else [found]
    if not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: is no manifest of cuagent; delete it")
    whole: dict[str, Any] = {"of": {}, "settings": {}}
    return whole | found


def input_of(out: Path, name: str) -> Any:
    """Return the recorded fingerprint of the input `name` from which a folder's results were made;
    None if there is none."""
    path = out / MANIFEST
    before = _read(path)
    return before["of"].get(name) if before else None


def finish(out: Path, step: int) -> None:
    """Record in the manifest that all results up to `step` are complete."""
    path = out / MANIFEST
    before = _read(path)
    if "command" in before:
        write_atomic(path, json.dumps({**before, "finished": step}))


def has_results(out: Path) -> bool:
    """Return True if the folder already has results: a file of `PRODUCTS`, or a partly played
    episode file."""
    # The first line of an incomplete file is a header, not an episode.
    played = (p.read_bytes().count(b"\n") > 1 for p in out.glob("episodes/*.incomplete"))
    return any(any(out.glob(product)) for product in PRODUCTS) or any(played)


def fixed_settings(config: Any, *excluded: str) -> dict[str, Any]:
    """Return all settings by full name (`ppo.iterations`), except those in `CHANGEABLE` and
    `excluded`."""
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
    """Return one phrase for each difference between two manifests, such as "with ppo.iterations=40,
    not 20".

    An error message puts the phrase after "the folder was made". Settings that only one manifest
    has are skipped.
    """
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
    """Return a setting's value as text that `--set` accepts."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
