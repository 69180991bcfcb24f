"""Three layers of DenseNet, each of which reads all before it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms1 = nn.ModuleList(nn.BatchNorm2d(64 + 16 * k) for k in range(3))
        self.convs1 = nn.ModuleList(nn.Conv2d(64 + 16 * k, 64, 1, bias=False) for k in range(3))
        self.norms2 = nn.ModuleList(nn.BatchNorm2d(64) for k in range(3))
        self.convs2 = nn.ModuleList(nn.Conv2d(64, 16, 3, padding=1, bias=False) for k in range(3))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for k in range(3):
            y = torch.cat(features, dim=1)
            y = self.convs1[k](F.relu(self.norms1[k](y)))
            features.append(self.convs2[k](F.relu(self.norms2[k](y))))
        return torch.cat(features, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, 64, 20, 20)]


def get_init_inputs() -> list[object]:
    return []
