"""Test whole runs: equal sets after a kill, the parquet file, the card, the audit, the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from synth_tasks import task

from cuagent.bench.problems import parquet
from cuagent.bench.record_form import TEXTS
from cuagent.bench.results import FORMAT, opened_for_writing
from cuagent.cli.main import run as command
from cuagent.synth.audit import audit
from cuagent.synth.candidate import Candidate
from cuagent.synth.catalogue import FAMILIES
from cuagent.synth.compose import Grammar
from cuagent.synth.dataset import (
    COLUMNS,
    SPLITS,
    about_of,
    difficulties,
    read_set,
    set_and_split,
    split_of,
    task_files,
    write_set,
)
from cuagent.synth.run import Settings, SynthError, synthesize
from cuagent.synth.shards import Record, Shards
from cuagent.training.data.tasks import load_tasks, task_difficulties

pytestmark = pytest.mark.slow

COUNT = 4
OPTIONS = ("--count", str(COUNT), "--seed", "4", "--device", "cpu", "--jobs", "2", "--no-compile")


def make(out: Path, *more: str, temporary: str = "") -> subprocess.Popen[bytes]:
    """Start `cuagent synth` in a new process group. `temporary`: folder for temporary files."""
    arguments = [sys.executable, "-m", "cuagent", "synth", *OPTIONS, "--out", str(out), *more]
    arguments += ["--families", "blocks:0,recurrent:0"]
    environment = os.environ | ({"TMPDIR": temporary} if temporary else {})
    return subprocess.Popen(arguments, start_new_session=True, env=environment)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small set that was made without an interruption."""
    out = tmp_path_factory.mktemp("synth") / "whole"
    assert make(out).wait(300) == 0
    return out


def texts(out: Path) -> list[tuple[str, list[str]]]:
    return [(row["id"], row["ops"]) for row in read_set(out / "tasks.parquet")]


@pytest.mark.timeout(1200)
def test_killed_run_resumes_to_the_same_set(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = make(out)
    deadline = time.monotonic() + 200
    while not list((out / "shards").glob("*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shard = out / "shards" / "00000.jsonl"
    before = shard.read_bytes()
    shard.write_bytes(before + b'{"index": 99, "rea')  # a line that the kill cut off
    assert not (out / "tasks.parquet").exists()
    assert make(out).wait(300) == 2  # without --resume nothing is overwritten
    assert make(out, "--resume").wait(300) == 0
    assert texts(out) == texts(made)
    assert shard.read_bytes().startswith(before)


def test_interrupt_ends_a_run_and_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    process = make(out, temporary=str(tmp_path))
    deadline = time.monotonic() + 200
    while not list((out / "shards").glob("*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(_processes(tmp_path)) > 1
    process.send_signal(signal.SIGINT)
    assert process.wait(200) == 130
    assert _processes(tmp_path) == []
    assert list(tmp_path.glob("cuagent-*")) == []


def test_interrupt_does_not_wait_for_candidates_and_reports_them(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    hangs = task(
        "open(PATH, 'w').close(); time.sleep(300)",
        before=f"import time\nPATH = {str(begun)!r}",
    )

    def compose(index: int) -> Candidate | None:
        return (
            Candidate(0, hangs, ("torch.exp",), ("elementwise",), "float32") if not index else None
        )

    asked: list[float] = []
    unfinished: list[Record] = []

    def observe(*_: object) -> None:  # the candidates that cannot be composed have records
        while not begun.exists():
            time.sleep(0.01)
        asked.append(time.monotonic())
        raise KeyboardInterrupt

    settings = Settings(1, compile=False)
    with pytest.raises(KeyboardInterrupt):
        synthesize(
            settings, tmp_path / "out", False, 2, observe, (None,), compose, unfinished.append
        )
    assert time.monotonic() - asked[0] < 100  # usually below one second
    assert [record["index"] for record in unfinished] == [0]
    assert [record["index"] for record in Shards(tmp_path / "out").read()] == [1]


def _processes(folder: Path) -> list[str]:
    """Return the commands of all processes that name the folder: the run and its fork server with
    children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return [command for command in found if str(folder) in command]


def test_set_has_the_columns_the_papers_first(made: Path) -> None:
    table = pyarrow.parquet.read_table(made / "tasks.parquet")
    assert table.column_names == list(COLUMNS)
    assert table.column_names[:3] == ["ops", "data_source", "code"]
    rows = table.to_pylist()
    assert len(rows) == COUNT
    for row in rows:
        assert row["data_source"] == f"torch#{len(row['ops'])}"
        assert 1 <= row["grade"] <= 5
        assert row["split"] in SPLITS
        assert row["baselines"][0]["eager_s"] > 0
    assert about_of(made / "tasks.parquet")["seed"] == 4


def test_card_counts_every_candidate(made: Path) -> None:
    text = (made / "README.md").read_text()
    assert f"| accepted | {COUNT} |" in text
    page = (made / "card.html").read_text()
    assert "<svg" in page
    assert "entropy of the operators" in page


def test_set_passes_its_own_audit_on_an_independent_run(made: Path) -> None:
    found = audit(made / "tasks.parquet", COUNT, "cpu", 2, compile=False)
    assert (found.rows, found.run, found.faults) == (COUNT, COUNT, {})


def test_check_command_accepts_a_row_of_the_set(made: Path) -> None:
    found = audit(made / "tasks.parquet", 1, "cpu", 1, compile=False, check=True)
    assert (found.run, found.faults) == (1, {})


def test_check_command_refuses_what_the_filter_cannot_see(tmp_path: Path) -> None:
    hidden = task("self.calls += 1; return torch.exp(x) + (self.calls > 40)", init="self.calls = 0")
    row = {"ops": ["torch.exp"], "data_source": "torch#1", "code": hidden}
    file = tmp_path / "ops.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    found = audit(file, 1, "cpu", 1, compile=False, check=True)
    assert len(found.faults) == 1


def test_bench_and_training_read_the_set(made: Path, tmp_path: Path) -> None:
    problems = parquet(made / "tasks.parquet", tmp_path)
    assert len(problems) == COUNT
    rows = list(read_set(made / "tasks.parquet"))
    copied = tmp_path / "set.parquet"
    copied.write_bytes((made / "tasks.parquet").read_bytes())
    tasks = load_tasks(copied, "cpu")
    assert [task.source for task in tasks] == [r["code"] for r in rows if r["split"] == "train"]
    assert set(task_difficulties(copied, tasks)) == {task.digest for task in tasks}


def test_another_setting_cannot_resume(made: Path) -> None:
    assert make(made, "--resume", "--seed", "5").wait(300) == 2


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """The folder of a foreign set may contain links to files of the user."""
    users, out, file = tmp_path / "users", tmp_path / "out", tmp_path / "set.parquet"
    users.mkdir()
    (out / "shards").mkdir(parents=True)
    (out / "shards" / "00000.jsonl").symlink_to(users / "notes")
    assert make(out).wait(300) == 2
    pyarrow.parquet.write_table(pyarrow.table({"code": [task("return x.exp()")]}), file)
    file.with_suffix(".tasks").symlink_to(users)
    with pytest.raises(SynthError, match=r"set\.tasks: is a link"):
        task_files(file, "train")
    file.with_suffix(".tasks").unlink()
    file.with_suffix(".tasks").mkdir()
    (file.with_suffix(".tasks") / f"row_00000.{os.getpid()}").symlink_to(users / "notes")
    with pytest.raises(SynthError, match="is a link"):
        task_files(file, "train")
    assert list(users.iterdir()) == []


def test_audit_finds_planted_faults_in_the_papers_form(tmp_path: Path) -> None:
    relu = task("return torch.relu(x)")
    rows = [
        {"ops": '["torch.relu"]', "data_source": "torch#1", "code": relu},
        {"ops": '["torch.relu"]', "data_source": "torch#1", "code": relu},
        {"ops": '["torch.relu"]', "data_source": "torch#1", "code": relu.replace("64", "96")},
        {"ops": '["torch.diag"]', "data_source": "torch#1", "code": task("return torch.exp(x)")},
        {"ops": "[]", "data_source": "torch#0", "code": "no python at all"},
        {
            "ops": '["torch.randn_like"]',
            "data_source": "torch#1",
            "code": task("return x + torch.randn_like(x)"),
        },
    ]
    file = tmp_path / "ops.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    found = audit(file, 10, "cpu", 2, compile=False)
    assert found.faults == {
        "byte-identical duplicate": [1],
        "duplicate but for names and sizes": [2],
        "label absent from the code": [3],
        "no task": [4],
        "wrong operator label": [3],
        "random or with hidden state": [5],
    }
    assert found.to_json()["rows_by_operators"] == {"0": 1, "1": 5}
    assert found.details["label absent from the code", 3] == "diag"
    assert found.details["wrong operator label", 3] == "declared, not run: diag"


def test_audit_command_reports_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ops.parquet"
    row = {"ops": ["torch.relu"], "data_source": "torch#1", "code": task("return torch.relu(x)")}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row]), file)
    assert command(["synth", "read", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == {"byte-identical duplicate": 1}


def test_held_out_splits_follow_family_and_shape() -> None:
    assert split_of(["products", "recurrent"], ["float32[8,64]"]) == "test_family"
    shapes = [f"float32[8,{size}]" for size in range(16, 400)]
    found = {shape: split_of(["products"], [shape]) for shape in shapes}
    held_out = [shape for shape, split in found.items() if split == "test_shape"]
    assert 15 < len(held_out) < 70
    assert split_of(["scans"], [held_out[0].replace("[8,", "[999,")]) == "test_shape"


def test_splits_are_named_after_the_file(tmp_path: Path) -> None:
    assert set_and_split(Path("a.parquet")) == (Path("a.parquet"), "train")
    assert set_and_split(Path("a.parquet:test_shape")) == (Path("a.parquet"), "test_shape")
    assert set_and_split(Path("folder")) is None


def test_foreign_file_gives_all_rows_and_no_difficulty(tmp_path: Path) -> None:
    file = tmp_path / "ops.parquet"
    row = {"ops": ["torch.relu"], "code": task("return torch.relu(x)")}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    assert len(task_files(file, "train")) == 1
    assert difficulties(file) == {}


def test_bench_results_change_the_grade(tmp_path: Path, made: Path) -> None:
    rows = list(read_set(made / "tasks.parquet"))
    file = tmp_path / "tasks.parquet"
    write_set(rows, file, about_of(made / "tasks.parquet"))
    gains = {"eager": 6.0, "best_rung": 4.0}
    ratios = {name: dict.fromkeys(("value", "low", "high"), gain) for name, gain in gains.items()}
    record = dict.fromkeys(TEXTS, "") | {"format": FORMAT, "problem": "row 0", "settings": {}}
    with opened_for_writing(tmp_path) as results:
        results.append(record | {"status": "kernel", "ratios": ratios, "best_rung": "compile"})
    assert command(["synth", "grade", str(file), "--bench", str(tmp_path)]) == 0
    graded = list(read_set(file))
    assert graded[0]["expert_gain"] == 4.0
    assert graded[0]["difficulty"] < rows[0]["difficulty"] or rows[0]["difficulty"] == 0
    assert graded[1] == rows[1]


def test_records_of_all_shards_are_read_in_order(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    for index in (1500, 2, 700, 2500, 1):
        shards.append({"index": index})
    assert [record["index"] for record in shards.read()] == [1, 2, 700, 1500, 2500]
    assert len(list(shards.folder.iterdir())) == 3


@pytest.mark.parametrize("text", ["[" * 100_000, "7", "null", "\ud800"])
def test_malformed_settings_of_a_set_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(SynthError, match="cannot be read as settings"):
        synthesize(Settings(1), tmp_path, True, 1, lambda *_: None)


@pytest.mark.parametrize("code", [[1], [None], [b"x"], [["a"]], [{"a": 1}]])
def test_code_that_is_no_text_is_refused(tmp_path: Path, code: list[object]) -> None:
    file = tmp_path / "odd.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"code": code}), file)
    with pytest.raises(SynthError, match="the `code` of row 0 is no text"):
        task_files(file, "train")


def test_audit_names_a_row_without_text_and_audits_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd.parquet"
    code = [None, *[task("return torch.relu(x)")] * 2]
    pyarrow.parquet.write_table(pyarrow.table({"code": code}), file)
    assert command(["synth", "read", str(file)]) == 1
    said = capsys.readouterr().out
    assert "no task: 1 rows\n  row 0: its code is no text" in said
    assert "byte-identical duplicate: 1 rows\n  row 2: of row 1" in said


def test_audit_of_hostile_texts_ends_soon_without_an_error(tmp_path: Path) -> None:
    deep = "x = " + "-" * 100_000 + "1"
    code = [deep, "(" * 5_000, "a\0b", "x = 1\n" * 1_000_000, "class Model:\n  x = y" + ".z" * 900]
    file = tmp_path / "hostile.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"code": code}), file)
    start = time.monotonic()
    assert command(["synth", "read", str(file)]) == 1
    assert time.monotonic() - start < 100  # usually below 4 s


def test_parquet_without_code_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), file)
    with pytest.raises(SynthError, match="no column `code`; it has text"):
        list(read_set(file))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["synth"], "--out is missing"),
        (["synth", "--out", "x", "--families", "nonsense:1"], "unknown; use elementwise"),
        (["synth", "--out", "x", "--operators", "many:1"], "write numbers"),
        (["synth", "--out", "x", "--operators", "1:nan"], "a finite number"),
        (["synth", "--out", "x", "--operators", "1:0"], "must be above 0"),
        (["synth", "--out", "x", "--compose", "magic"], "use grammar or model"),
        (["synth", "read", "missing.parquet"], "no such file"),
    ],
)
def test_usage_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(arguments) == 2
    assert message in capsys.readouterr().err


def test_missing_pyarrow_is_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert command(["synth", "--count", "1", "--device", "cpu", "--out", str(tmp_path / "o")]) != 0
    assert "pip install" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_settings_have_the_problems_of_kernelbench_but_not_their_folder(tmp_path: Path) -> None:
    found = set()
    for name in ("a", "b"):
        folder = tmp_path / name / "level1"
        folder.mkdir(parents=True)
        (folder / "19_ReLU.py").write_text(task("return torch.relu(x)"))
        found.add(Settings(1, kernelbench=str(tmp_path / name)).identity()["kernelbench"])
    assert len(found) == 1
    (folder / "20_Exp.py").write_text(task("return torch.exp(x)"))
    assert Settings(1, kernelbench=str(tmp_path / "b")).identity()["kernelbench"] not in found


def test_settings_name_what_makes_a_set() -> None:
    identity = Settings(10, seed=3).identity()
    assert identity["seed"] == 3
    assert {"generator", "torch", "transformers", "timm", "grammar"} <= set(identity)
    assert "count" not in identity


def test_set_of_other_library_versions_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(10)
    (tmp_path / "settings.json").write_text(json.dumps(settings.identity()))
    monkeypatch.setattr("cuagent.synth.run.installed_version", lambda name: "99")
    with pytest.raises(SynthError, match="was begun with another transformers, timm"):
        synthesize(settings, tmp_path, True, 1, lambda *_: None)


def test_card_has_the_command_with_all_options() -> None:
    assert Settings(7, 3, "cuda").command() == (
        "cuagent synth --count 7 --seed 3 --device cuda --out DIR"
    )
    counts, families = {1: 1.0, 2: 0.5}, {**FAMILIES, "recurrent": 0.0}
    grammar = Grammar(counts=counts, families=families)
    settings = Settings(
        7, compose="model openai:m", grammar=grammar, kernelbench="/k", compile=False
    )
    assert settings.command() == (
        "cuagent synth --count 7 --seed 0 --device cpu --out DIR --compose model --model openai:m "
        "--operators 1:1,2:0.5 --families recurrent:0 --kernelbench KERNELBENCH --no-compile"
    )
