"""Parsing of ncu's output into one line for an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.measure.profile.counters import (
    METRICS,
    SECTION_METRICS,
    STALL,
    CountersMissing,
    read,
    run,
)

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
    "occupancy_pct": ("%", "12.4"),
    "l2_hit_pct": ("%", "189"),
    "waves": ("", "3.88"),
    "possible_pct": ("%", "25"),
    "global_sectors": ("sectors", "3,200"),
    "global_ideal": ("sectors", "1,600"),
    "shared_wavefronts": ("sectors", "100"),
    "shared_ideal": ("sectors", "100"),
    "spilling": ("inst", "7"),
}


def printed() -> str:
    """Return output like that of `ncu --csv --page raw`: messages, names, units, rows."""
    names = [
        "ID",
        "Kernel Name",
        *((METRICS | SECTION_METRICS)[n] for n in SHOWN),
        *(STALL + n for n in STALLS),
    ]
    units = ["", "", *(unit for unit, _ in SHOWN.values()), *("warp" for _ in STALLS)]
    row = ["0", "void f<int, 2>(float *)", *(v for _, v in SHOWN.values()), *STALLS.values()]
    lines = [",".join(f'"{cell}"' for cell in line) for line in (names, units, row)]
    return "==PROF== Connected\n" + "\n".join(lines) + "\n"


def test_read_understands_units_thousands_and_missing_values() -> None:
    (launch,) = read(printed())
    assert launch.kernel == "void f<int, 2>(float *)"
    assert launch.values["seconds"] == pytest.approx(5.824e-6)
    assert launch.values["dram_bytes_read"] == pytest.approx(8.4e6)
    assert "tensor_pct" not in launch.values


def test_line_lists_the_counters_that_an_agent_can_act_on() -> None:
    (launch,) = read(printed())
    assert launch.stalls == (("long_scoreboard", 0.6), ("wait", 0.1))
    assert launch.line() == (
        "SM 0 %, DRAM 0 %; occupancy 12 of 25 % (limit: registers); 224 registers; L2 hits 100 %; "
        "tensor cores idle; 7 instructions spill; uncoalesced: 2.0x the sectors needed; "
        "stalls long_scoreboard 60%, wait 10%"
    )


def test_limiter_of_less_than_one_wave_is_too_few_blocks() -> None:
    (launch,) = read(printed().replace('"3.88"', '"0.12"'))
    assert launch.limiter == "too few blocks"


def test_run_reports_that_ncu_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CountersMissing, match="not installed"):
        run(["true"], {}, tmp_path, 1.0)
    assert read("==ERROR== no kernels were profiled\n") == []
