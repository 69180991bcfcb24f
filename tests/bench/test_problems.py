"""Find the problems of a checkout, a folder and a parquet file."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from make_tasks import task_text, write_task

from cuagent.bench.problems import BenchError, folder_of_tasks, kernelbench, parquet


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for level, names in ((1, ("1_Square_product_", "2_Sum", "10_ReLU")), (2, ("1_Conv_ReLU",))):
        for name in names:
            write_task(tmp_path / f"KernelBench/level{level}/{name}.py", "return x.relu()")
    return tmp_path


def test_a_checkout_is_listed_by_level_and_number(checkout: Path) -> None:
    found = kernelbench(checkout, levels=(1, 2))
    assert [p.name for p in found] == ["L1/1", "L1/2", "L1/10", "L2/1"]
    assert (found[0].title, found[0].group) == ("Square product", "level 1")
    assert [p.name for p in kernelbench(checkout / "KernelBench", levels=(2,))] == ["L2/1"]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [("1", ["L1/1", "L2/1"]), ("2-10", ["L1/2", "L1/10"]), ("L2/1, 1/10", ["L1/10", "L2/1"])],
)
def test_problems_are_selected_by_number(checkout: Path, wanted: str, names: list[str]) -> None:
    assert [p.name for p in kernelbench(checkout, (1, 2), wanted)] == names


@pytest.mark.parametrize(
    ("levels", "wanted", "message"),
    [((3,), "", "no folder level3"), ((1,), "77", "no such problem"), ((1,), "x", "write numbers")],
)
def test_a_selection_of_nothing_is_refused(
    checkout: Path, levels: tuple[int, ...], wanted: str, message: str
) -> None:
    with pytest.raises(BenchError, match=message):
        kernelbench(checkout, levels, wanted)


def test_a_folder_gives_its_tasks_and_leaves_out_helpers(tmp_path: Path) -> None:
    write_task(tmp_path / "b.py", "return x")
    write_task(tmp_path / "more/a.py", "return x")
    write_task(tmp_path / ".hidden/c.py", "return x")
    (tmp_path / "helper.py").write_text("def scale(x):\n    return x\n")
    (tmp_path / "broken.py").write_text("def (")
    found = folder_of_tasks(tmp_path)
    assert [(p.name, p.group) for p in found] == [("b", "tasks"), ("more/a", "more")]
    assert [p.name for p in folder_of_tasks(tmp_path, "more/a")] == ["more/a"]
    with pytest.raises(BenchError, match="no such task"):
        folder_of_tasks(tmp_path, "absent")


def test_a_parquet_file_gives_each_distinct_row(tmp_path: Path) -> None:
    texts = [
        task_text("return x.relu()"),
        task_text("return x.exp()"),
        task_text("return x.relu()"),
    ]
    table = pyarrow.table(
        {
            "ops": [["nn.ReLU"], '["torch.exp"]', ["nn.ReLU"]][:1] * 3,
            "data_source": ["torch#1", "torch#2", "torch#1"],
            "code": texts,
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    found = parquet(tmp_path / "rows.parquet", tmp_path / "out")
    assert [(p.name, p.group, p.title) for p in found] == [
        ("row 0", "torch#1", "nn.ReLU"),
        ("row 1", "torch#2", "nn.ReLU"),
    ]
    assert found[1].path.read_text() == texts[1]
    assert [p.name for p in parquet(tmp_path / "rows.parquet", tmp_path / "out", "1")] == ["row 1"]


def test_a_parquet_file_without_code_is_refused(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "rows.parquet")
    with pytest.raises(BenchError, match="no column `code`; it has text"):
        parquet(tmp_path / "rows.parquet", tmp_path / "out")
    (tmp_path / "no.parquet").write_text("no")
    with pytest.raises(BenchError, match="cannot be read as parquet"):
        parquet(tmp_path / "no.parquet", tmp_path / "out")


@pytest.mark.parametrize("link", ["out/tasks", "out/tasks/row_00000.py"])
def test_rows_are_not_written_through_a_link(tmp_path: Path, link: str) -> None:
    table = pyarrow.table({"code": ["x = 1\n"]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "outside").mkdir()
    (tmp_path / link).parent.mkdir(parents=True)
    target = tmp_path / "outside"
    (tmp_path / link).symlink_to(target / "new.py" if link.endswith(".py") else target)
    with pytest.raises(BenchError, match="is a link"):
        parquet(tmp_path / "rows.parquet", tmp_path / "out")
    assert not list((tmp_path / "outside").iterdir())


def test_helper_file_that_cannot_be_parsed_is_no_task(tmp_path: Path) -> None:
    write_task(tmp_path / "a.py", "return x.relu()")
    (tmp_path / "deep.py").write_text("x = " + "-" * 200_000 + "1\n")
    assert [problem.name for problem in folder_of_tasks(tmp_path)] == ["a"]
