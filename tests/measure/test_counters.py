"""What ncu prints becomes one line an agent can act on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.measure.counters import METRICS, STALL, CountersMissing, read, run

STALLS = {
    "long_scoreboard": "60",
    "long_scoreboard_not_issued": "99",
    "selected": "30",
    "wait": "10",
}
SHOWN = {
    "seconds": ("ns", "5,824"),
    "registers": ("register/thread", "224"),
    "limit_registers": ("block", "2"),
    "limit_warps": ("block", "16"),
    "dram_bytes_read": ("Mbyte", "8.4"),
    "tensor_pct": ("%", "no data"),
    "sectors": ("sector", "3,200"),
    "requests": ("", "100"),
}


def printed() -> str:
    """As `ncu --csv --page raw` does it: chatter, names, units, a row for each launch."""
    names = ["ID", "Kernel Name", *(METRICS[n] for n in SHOWN), *(STALL + n for n in STALLS)]
    units = ["", "", *(unit for unit, _ in SHOWN.values()), *("warp" for _ in STALLS)]
    row = ["0", "void f<int, 2>(float *)", *(v for _, v in SHOWN.values()), *STALLS.values()]
    lines = [",".join(f'"{cell}"' for cell in line) for line in (names, units, row)]
    return "==PROF== Connected\n" + "\n".join(lines) + "\n"


def test_units_thousands_and_missing_values_are_understood() -> None:
    (launch,) = read(printed())
    assert launch.kernel == "void f<int, 2>(float *)"
    assert launch.values["seconds"] == pytest.approx(5.824e-6)
    assert launch.values["dram_bytes_read"] == pytest.approx(8.4e6)
    assert "tensor_pct" not in launch.values


def test_the_line_names_the_limiter_the_stalls_and_uncoalesced_loads() -> None:
    (launch,) = read(printed())
    assert launch.limiter == "registers"
    assert launch.stalls == (("long_scoreboard", 0.6), ("wait", 0.1))
    assert "uncoalesced: 32 sectors" in launch.line()


def test_without_ncu_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CountersMissing, match="not installed"):
        run(["true"], {}, tmp_path, 1.0)
    assert read("==ERROR== no kernels were profiled\n") == []
