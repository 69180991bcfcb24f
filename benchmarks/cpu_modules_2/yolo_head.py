"""Decoding of a YOLO head with anchors."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 45, 1)
        self.register_buffer("anchors", torch.tensor([[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]]))

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        y = self.conv(x).view(b, 3, 15, h, w).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
        gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack((gx, gy), dim=-1).view(1, 1, h, w, 2).to(x.dtype)
        xy = (y[..., 0:2] * 2 - 0.5 + grid) * 16
        wh = (y[..., 2:4] * 2) ** 2 * self.anchors.view(1, 3, 1, 1, 2)
        return torch.cat((xy, wh, y[..., 4:]), dim=-1).view(b, -1, 15)


def get_inputs() -> list[Tensor]:
    return [torch.randn(2, 64, 20, 20)]


def get_init_inputs() -> list[object]:
    return []
