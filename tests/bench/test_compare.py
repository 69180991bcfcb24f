"""Say what changed between two benchmarks, and nothing that noise explains."""

from __future__ import annotations

from records import free_option, solved, unsolved

from cuagent.bench.compare import compare


def test_each_kind_of_change_is_named() -> None:
    before = [
        solved("same", seconds_each=1.0),
        solved("faster", seconds_each=1.0),
        solved("slower", seconds_each=1.0),
        solved("broken"),
        unsolved("mended", reason="it broke"),
        unsolved("never"),
        solved("gone"),
    ]
    after = [
        solved("same", seconds_each=1.03),
        solved("faster", over_compile=3.0, seconds_each=0.5),
        solved("slower", over_compile=0.75, seconds_each=2.0),
        unsolved("broken", "no kernel", "wrong values"),
        solved("mended"),
        unsolved("never"),
        solved("come"),
    ]
    found = compare(before, after)
    assert [c.problem for c in found.faster] == ["faster"]
    assert [(c.problem, c.ratio) for c in found.slower] == [("slower", 0.5)]
    assert [c.text for c in found.newly_accepted] == ["failed: it broke -> accepted"]
    assert [c.text for c in found.newly_failing] == ["accepted -> no kernel: wrong values"]
    assert found.unchanged == 2
    assert found.missing == ("come", "gone")
    assert found.speedup is not None
    assert found.speedup.count == 3


def test_kernel_that_replaces_a_free_option_is_compared_with_it() -> None:
    kernel = solved("a", over_compile=7.0, seconds_each=0.5e-3)
    (change,) = compare([free_option("a")], [kernel]).faster
    assert change.text == "2.01x (free option compile+cuda_graph -> kernel)"
    (change,) = compare([kernel], [free_option("a")]).slower
    assert change.text == "0.50x (kernel -> free option compile+cuda_graph)"
    quick = free_option("a")
    quick["times"]["compile+cuda_graph"] = {"median_s": 1e-3, "low_s": None, "high_s": None}
    assert not compare([quick], [kernel]).faster, "a time without limits decides nothing"
    text = "no kernel: it broke -> free option compile+cuda_graph"
    found = compare([unsolved("a", "no kernel")], [free_option("a")])
    assert [change.text for change in found.newly_accepted] == [text]


def test_a_machine_that_was_busy_once_makes_nothing_slower() -> None:
    """All arms took three times as long, so the kernel has not changed."""
    found = compare([solved("a", seconds_each=1.0)], [solved("a", seconds_each=3.0)])
    assert not found.slower
    assert found.unchanged == 1
    assert found.speedup is not None
    assert found.speedup.value == 1.0
    eager_was_slow = solved("a", over_compile=4.0, seconds_each=1.0)
    assert not compare([solved("a", seconds_each=1.0)], [eager_was_slow]).faster


def test_times_of_different_devices_are_not_compared() -> None:
    found = compare([solved("a")], [solved("a", seconds_each=9.0, device="another device")])
    assert not found.slower
    assert found.speedup is None
    assert found.notes == ("device: a device -> another device",)
