"""Multi-scale deformable attention of Deformable DETR's encoder in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, WIDTH, HEADS, POINTS = 4, 256, 8, 4
SIDES = (64, 32, 16, 8)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        count = HEADS * len(SIDES) * POINTS
        self.offsets, self.weights = nn.Linear(WIDTH, 2 * count), nn.Linear(WIDTH, count)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, query: Tensor, points: Tensor, features: Tensor) -> Tensor:
        b, n, c = query.shape
        value = self.value(features).view(b, -1, HEADS, c // HEADS)
        offsets = self.offsets(query).view(b, n, HEADS, len(SIDES), POINTS, 2)
        weights = self.weights(query).view(b, n, HEADS, len(SIDES) * POINTS).softmax(dim=-1)
        sampled, start = [], 0
        for level, side in enumerate(SIDES):
            plane = value[:, start : start + side * side].flatten(2).transpose(1, 2)
            plane = plane.reshape(b * HEADS, c // HEADS, side, side)
            grid = 2 * (points[:, :, None, level, None] + offsets[:, :, :, level] / side) - 1
            grid = grid.transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(plane, grid, mode="bilinear", align_corners=False))
            start += side * side
        weights = weights.transpose(1, 2).reshape(b * HEADS, 1, n, len(SIDES) * POINTS)
        y = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)
        return query + self.out(y.view(b, c, n).transpose(1, 2))


def get_inputs() -> list[Tensor]:
    n = sum(side * side for side in SIDES)
    return [
        torch.randn(BATCH, n, WIDTH),
        torch.rand(BATCH, n, len(SIDES), 2),
        torch.randn(BATCH, n, WIDTH),
    ]


def get_init_inputs() -> list[object]:
    return []
