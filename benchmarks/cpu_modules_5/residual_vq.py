"""Residual vector quantisation with three codebooks, as in audio codecs."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.ParameterList(
            nn.Parameter(torch.randn(128, 32) / (k + 1)) for k in range(3)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rest = x.transpose(1, 2).reshape(-1, 32)
        made = torch.zeros_like(rest)
        indices, loss = [], rest.new_zeros(())
        for codes in self.codes:
            distance = codes.square().sum(-1) - 2 * rest @ codes.T
            index = distance.argmin(-1)
            chosen = codes[index]
            loss = loss + (chosen - rest).square().mean()
            made, rest = made + chosen, rest - chosen
            indices.append(index)
        shape = (x.shape[0], x.shape[2], 32)
        return made.view(shape).transpose(1, 2), torch.stack(indices), loss


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 32, 100)]


def get_init_inputs() -> list[object]:
    return []
