"""Test every stage of `train_shapes.py` with a tiny model of each family: the real prompt and
tools, the engine of GPUs, RFT, value and PPO steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from train_shapes import main
from train_shapes_models import FAMILIES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_model_of_each_family_plays_and_trains(family: str, tmp_path: Path) -> None:
    # Backward passes over 8,000 tokens take a minute on a busy CPU. Value and PPO steps of other
    # families are tested with short rows (tests/training/policy/test_packing.py).
    trained = ["rft", "value", "ppo"] if family == "qwen2" else ["rft"]
    main(
        ["--family", family, "--shape", "tiny", "--stages", ",".join(["sample", "agree", *trained]),
         "--episodes", "2", "--ppo-episodes", "2", "--reply", "12", "--seconds", "1",
         "--out", str(tmp_path)]
    )  # fmt: skip
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["sample"]["episodes"] == 2
    assert found["sample"]["turns"] == [4, 4]
    assert found["sample"]["prompt_tokens"] > 5000
    # Each token is computed once: no turn computes the conversation before it again.
    assert found["sample"]["computed_tokens"] <= 2 * found["sample"]["tokens"][1]
    assert found["sample"]["sampled_tokens"] == 2 * 4 * 12
    assert found["agree"]["compared_tokens"] > 50
    assert found["agree"]["largest"] < 1e-3
    for stage in trained:
        assert found[stage]["source"] == "played"
        assert len(found[stage]["results"]) == 1


def test_interrupted_episodes_are_not_played_again(tmp_path: Path) -> None:
    common = ["--shape", "tiny-lora", "--episodes", "2", "--reply", "8", "--out", str(tmp_path)]
    main(["--stages", "sample", *common])
    first = json.loads((tmp_path / "figures.json").read_text())["sample"]
    assert first["sampled_tokens"] > 0
    whole = tmp_path / "episodes" / "00000.jsonl"
    lines = whole.read_text().splitlines()
    head = {"v": json.loads(lines[0])["v"], "shape": "tiny-lora", "reply": 8}
    partial = whole.with_name("00000-0.incomplete")
    partial.write_text("\n".join([json.dumps(head), lines[0]]) + "\n")
    whole.unlink()
    main(["--stages", "sample", *common])
    second = json.loads((tmp_path / "figures.json").read_text())["sample"]
    assert second["episodes"] == 2
    assert second["sampled_tokens"] == first["sampled_tokens"] // 2


def test_fewer_episodes_are_played_if_the_time_does_not_allow_all(tmp_path: Path) -> None:
    probe = {"device": "cpu", "conversations": 2, "read_tokens_per_s": 100}
    (tmp_path / "figures.json").write_text(json.dumps({"probe": probe}))
    main(["--shape", "tiny", "--stages", "sample", "--reply", "8", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "figures.json").read_text())["sample"]["episodes"] == 2
