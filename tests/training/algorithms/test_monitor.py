"""Test the alarms of the monitor."""

from __future__ import annotations

import math

from cuagent.training.algorithms.monitor import Limits


def test_monitor_names_each_fault() -> None:
    from cuagent.training.algorithms.monitor import alarms

    healthy = {
        "entropy": 1.0, "reward_fall": 0.1, "reward_std": 1.0, "ev_q4": 0.4, "length_clipped": 0.0,
        "bad_calls": 0.05, "clip_fraction": 0.02, "approx_kl": 0.01, "first_log_ratio_max": 0.0,
        "grad_norm_actor": 1.0,
    }  # fmt: skip
    calm = [healthy] * 6
    assert alarms(calm, Limits()) == []
    troubles = {
        "entropy": 1.3, "reward_fall": 1.5, "reward_std": 0.1, "ev_q4": -5.0,
        "length_clipped": 0.26, "bad_calls": 0.3, "clip_fraction": 0.3, "approx_kl": 0.2,
        "first_log_ratio_max": 0.1, "grad_norm_actor": 9.0, "actor_loss": math.nan,
    }  # fmt: skip
    names = set()
    for name, value in troubles.items():
        found = alarms([*calm, healthy | {name: value}], Limits())
        assert len(found) == 1, name
        names.add(found[0].name)
    assert len(names) == len(troubles)
    lasting = alarms([*calm, *[healthy | {"length_clipped": 0.26}] * 3], Limits())
    assert [a.severe for a in lasting] == [True]
