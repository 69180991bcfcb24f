"""Every kind of change of a watched parameter is noticed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cuagent.kernels import unchanged, watch

NAMES = ("0.weight", "1.running_mean", "2")


def module() -> nn.Module:
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    made.register_parameter("2", nn.Parameter(torch.ones(3)))
    return made


def replaced(m):
    m[0].weight = nn.Parameter(torch.ones(4, 3))


def replaced_module(m):
    m[0] = nn.Linear(3, 4)


def written(m):
    with torch.no_grad():
        m[0].weight.mul_(2)


def buffer_written(m):
    m[1].running_mean.add_(1)


def other_data(m):
    m[0].weight.data = torch.ones(4, 3)


def other_dtype(m):
    m.double()


def loaded(m):
    m.load_state_dict(copy.deepcopy(m.state_dict()))


def removed(m):
    del m[0].weight


CHANGES = [
    replaced,
    replaced_module,
    written,
    buffer_written,
    other_data,
    other_dtype,
    loaded,
    removed,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_change_is_noticed(change):
    model = module()
    watched = watch(model, NAMES)
    assert watched is not None
    assert unchanged(watched)
    change(model)
    assert not unchanged(watched)


def test_change_of_another_parameter_is_none():
    model = module()
    watched = watch(model, NAMES)
    model[0].bias.data.add_(1)
    assert watched is not None
    assert unchanged(watched)


def test_copy_of_a_module_is_a_change():
    model = module()
    model.known = watch(model, NAMES)
    assert unchanged(model.known)
    assert not unchanged(copy.deepcopy(model).known)


def test_tensors_without_a_count_of_changes_are_not_watched():
    with torch.inference_mode():
        model = module()
    assert watch(model, NAMES) is None


def test_computed_parameters_are_not_watched():
    model = module()
    nn.utils.parametrize.register_parametrization(model[0], "weight", nn.Identity())
    assert watch(model, NAMES) is None
