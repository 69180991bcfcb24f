"""Records of earlier versions are read with the meaning that they had."""

from __future__ import annotations

from pathlib import Path

from cuagent.attempt import Attempt
from cuagent.package.guarded import guarded_files
from cuagent.record import end_record, plain
from cuagent.record.revive import revive, task_of
from cuagent.task import Precision, TorchSettings, load_task
from cuagent.task.settings import recorded_settings
from cuagent.verify.domain import Domain

EMPTY = '{"kind": "list", "items": []}'
INIT = f'{{"kind": "list", "items": [{EMPTY}, {{"kind": "dict", "keys": [], "items": []}}]}}'


def test_match_of_a_run_without_settings_was_fp32(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text("class Model: ...\ndef get_inputs(): return []\n")
    task = load_task(path, device="cpu")
    data = plain(task)
    assert task_of([{"task": data}]) == task
    earlier = {name: value for name, value in data.items() if name != "settings"}
    found = task_of([{"task": earlier}])
    assert found.precision is Precision.FP32
    assert found.digest == load_task(path, device="cpu", precision="fp32").digest
    assert task_of([{"task": earlier | {"precision": "tf32"}}]).precision is Precision.TF32


def test_kernel_of_an_earlier_record_is_exported_with_the_flags_of_then(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text("class Model: ...\ndef get_inputs(): return []\n")
    earlier = Domain("cuda", (), EMPTY, (), INIT)
    task = load_task(path, device="cpu", precision="fp32")
    files = guarded_files(Attempt((("model_new.py", ""),)), task, earlier, "reference.py")
    assert '"conv": "ieee"' in files["model_new_verified/verified.json"]
    assert recorded_settings(None, Precision.TF32).matmul == "tf32"


def test_settings_of_a_domain_round_trip() -> None:
    own = TorchSettings(environment=(("NVIDIA_TF32_OVERRIDE", "0"),), fp16_reduction=(True, False))
    domain = Domain("cuda", (), EMPTY, (), INIT, own)
    assert revive(Domain, plain(domain)) == domain


def test_run_that_was_only_opened_again_keeps_its_end() -> None:
    records = [{"type": "session"}, {"type": "message"}, {"type": "end", "stop": "no gain"}]
    opened = [*records, {"type": "resume"}, {"type": "notice"}]
    assert (end_record(opened) or {})["stop"] == "no gain"
    queued = [*opened, {"type": "message", "role": "user"}]
    assert (end_record(queued) or {})["stop"] == "no gain"
    assert end_record([*queued, {"type": "message", "role": "assistant"}]) is None
    assert end_record([*records, {"type": "branch", "why": "undo"}]) is None
