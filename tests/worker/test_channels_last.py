"""The layout of weights in rungs with channels_last."""

import pytest
import torch
from torch import nn

from cuagent.worker.channels_last import has_channels_last, to_channels_last


@pytest.mark.parametrize(
    ("layer", "x", "layout"),
    [
        (nn.Conv2d(4, 8, 3), torch.randn(2, 4, 6, 6), torch.channels_last),
        (nn.Conv2d(4, 8, 1), torch.randn(2, 4, 6, 6), torch.channels_last),
        (nn.Conv2d(4, 4, 3, groups=4), torch.randn(2, 4, 6, 6), torch.channels_last),
        (nn.ConvTranspose3d(4, 8, 3), torch.randn(2, 4, 5, 5, 5), torch.channels_last_3d),
        (nn.Conv3d(4, 8, 1), torch.randn(2, 4, 5, 5, 5), torch.channels_last_3d),
    ],
)
def test_convolution_of_a_contiguous_input_computes_in_the_layout_of_its_weights(
    layer: nn.Module, x: torch.Tensor, layout: torch.memory_format
) -> None:
    module = nn.Sequential(layer)
    before = module(x)
    assert has_channels_last([weight.shape for weight in module.parameters()])
    after = to_channels_last(module)(x)
    assert module[0].weight.is_contiguous(memory_format=layout)
    if x.ndim == 4:  # in three dimensions the CPU's choice depends on the number of threads
        assert after.is_contiguous(memory_format=layout)
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (8, 4, 1, 1), (8, 1, 3, 3), (1, 4, 3, 3)])
def test_weights_have_the_strides_that_torch_gives_them(shape: tuple[int, ...]) -> None:
    module, other = (nn.ParameterDict({"weight": torch.empty(shape)}) for _ in range(2))
    other.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    to_channels_last(module)
    assert module["weight"].stride() == other["weight"].stride()


def test_weights_of_other_ranks_keep_their_layout() -> None:
    module = nn.Sequential(nn.Conv1d(4, 8, 3), nn.Linear(8, 8))
    weights = {name: (w.data_ptr(), w.stride()) for name, w in module.named_parameters()}
    to_channels_last(module)
    assert {n: (w.data_ptr(), w.stride()) for n, w in module.named_parameters()} == weights
    assert not has_channels_last([weight.shape for weight in module.parameters()])
