"""The shared layers of PointNet, a maximum over points, and the classifier."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64)
        self.conv2, self.bn2 = nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128)
        self.conv3, self.bn3 = nn.Conv1d(128, 256, 1), nn.BatchNorm1d(256)
        self.fc1, self.bn4 = nn.Linear(256, 128), nn.BatchNorm1d(128)
        self.fc2 = nn.Linear(128, 40)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = torch.max(self.bn3(self.conv3(x)), 2)[0]
        return F.log_softmax(self.fc2(F.relu(self.bn4(self.fc1(x)))), dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(4, 3, 512)]


def get_init_inputs() -> list[object]:
    return []
