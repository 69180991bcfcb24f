"""Viterbi decoding of a tagger: scores of the best paths, and the tags of the best one."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emit = nn.Linear(48, 9)
        self.transitions = nn.Parameter(torch.randn(9, 9))
        self.start = nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        emissions = self.emit(x)
        score = self.start + emissions[:, 0]
        pointers = []
        for t in range(1, x.shape[1]):
            best, arrows = (score[:, :, None] + self.transitions).max(1)
            score = best + emissions[:, t]
            pointers.append(arrows)
        total, tag = score.max(1)
        tags = [tag]
        for arrows in reversed(pointers):
            tag = arrows.gather(1, tag[:, None]).squeeze(1)
            tags.append(tag)
        return total, torch.stack(tags[::-1], dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(16, 20, 48)]


def get_init_inputs() -> list[object]:
    return []
