"""Check that a JSON result has the keys of the golden file for its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "record" / "results"
BY_NAME = {
    "ratios",
    "free",
    "versions",
    "parts_s",
    "operators",
    "values",
    "relative_errors",
    "stages",
}
"""Keys whose values are objects with variable keys: names of baselines, operators, stages."""


def assert_follows(told: dict[str, Any], name: str) -> None:
    """Assert that the result `told` has the keys of the golden file `name`.

    Parts that are null in the result or in the golden file, and empty lists, are not compared.
    """
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    assert (told["schema"], told["command"]) == (golden["schema"], golden["command"])
    _compare(told, golden, name)


def _compare(told: Any, golden: Any, path: str) -> None:
    if isinstance(told, dict) and isinstance(golden, dict):
        assert told.keys() == golden.keys(), path
        for key in told.keys() - BY_NAME:
            _compare(told[key], golden[key], f"{path}.{key}")
    elif isinstance(told, list) and isinstance(golden, list) and told and golden:
        _compare(told[0], golden[0], f"{path}[0]")
