"""The page needs no network, shows every problem, and escapes what foreign files say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from records import degenerate, free_option, solved, unsolved

from cuagent.bench.charts import bars
from cuagent.bench.page import page, write_page
from cuagent.bench.results import Record

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def records() -> list[Record]:
    return [
        solved("L1/2", 1.2, title="<script>alert(1)</script>"),
        solved("L1/10", 3.0, family="scan", bound="compute", seconds_each=2e-5),
        solved("L2/1", 0.4, group="level 2", certificates=[degenerate("zero output passes")]),
        unsolved("L2/3", reason="needs <b>more</b> memory", group="level 2"),
    ]


def test_every_problem_is_listed_with_its_reason() -> None:
    text = page(records())
    assert all(f">{name}</td>" in text for name in ("L1/2", "L1/10", "L2/1", "L2/3"))
    assert "zero output passes (found)" in text
    assert "4 problems: 3 kernel, 1 failed" in text


def test_a_free_option_is_listed_with_its_own_figures() -> None:
    text = page([free_option("L3/19", floor_s=4e-4)])
    assert "1 problem: 1 free option" in text
    assert ">6.96 (" in text
    assert ">1000.0</td>" in text, "the time of the option, not of the slower attempt"
    assert "2.81 (" not in text.partition('id="problems"')[2]
    assert "L3/19: 40% of the roofline" in text


def test_text_of_problems_is_escaped() -> None:
    text = page(records())
    assert "<script>alert" not in text
    assert "<b>more" not in text


def test_status_of_a_foreign_record_is_escaped_in_attributes_too() -> None:
    assert "<script>alert" not in page([unsolved("a", status='"><script>alert(1)</script>')])


def test_page_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "report.html").symlink_to(tmp_path / "victim")
    write_page(records(), tmp_path / "report.html")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "report.html").is_symlink()


def test_the_page_loads_nothing() -> None:
    text = page(records())
    assert not re.search(r"https?:|src=|@import|url\(|<link", text)


def test_charts_show_each_result(tmp_path: Path) -> None:
    text = page(records())
    assert len(re.findall(r"<circle[^>]*><title>[^<]*of the roofline", text)) == 3
    assert "1 problems, 2x to 4x over torch.compile" in text
    assert "scan: 3.00x over torch.compile, 1 problems" in text


def test_a_benchmark_without_results_has_a_page(tmp_path: Path) -> None:
    write_page([unsolved("a")], tmp_path / "report.html")
    assert "no timed result yet" in (tmp_path / "report.html").read_text()
    write_page([], tmp_path / "report.html")
    assert "0 problems" in (tmp_path / "report.html").read_text()


SORT = """
<script>
document.addEventListener("DOMContentLoaded", () => setTimeout(() => {
  const heads = [...document.querySelectorAll("#problems th button")];
  const shown = () => [...document.querySelectorAll("#problems tbody tr")]
    .filter(row => !row.hidden).map(row => row.cells[0].textContent).join(" ");
  const found = [];
  heads.find(b => b.textContent === "x over torch.compile").click(); found.push(shown());
  heads.find(b => b.textContent === "x over torch.compile").click(); found.push(shown());
  heads[0].click(); heads[0].click(); found.push(shown());
  const filter = document.getElementById("filter");
  filter.value = "scan"; filter.dispatchEvent(new Event("input")); found.push(shown());
  document.body.textContent = found.join(" | ");
}));
</script>
"""


def test_the_list_sorts_and_filters_in_a_browser(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no headless Chromium on this machine")
    (tmp_path / "page.html").write_text(page(records()).replace("</body>", f"{SORT}</body>"))
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            f"file://{tmp_path / 'page.html'}",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    assert body is not None
    assert body[1].strip().split(" | ") == [
        "L1/10 L1/2 L2/1 L2/3",
        "L2/1 L1/2 L1/10 L2/3",
        "L1/2 L1/10 L2/1 L2/3",
        "L1/10",
    ]


def test_bars_name_and_scale_every_count() -> None:
    chart = bars({"a < b": 4, "c": 1, "none": 0})
    assert "a &lt; b: 4" in chart
    widths = [float(part.partition('"')[0]) for part in chart.split('width="')[1:]]
    assert widths[0] == pytest.approx(4 * widths[1])
    assert widths[2] == 0
    assert "no timed result" in bars({})
