"""Classify images with blocks of the ConvNeXt kind, channels last."""

import torch
from common import exact, finished, optimized, options
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(1e-1 * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv_dw(x).permute(0, 2, 3, 1))
        y = self.fc2(self.act(self.fc1(y))).mul(self.gamma)
        return x + y.permute(0, 3, 1, 2)


class Net(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, stride=4)
        self.blocks = nn.Sequential(*(Block(dim) for _ in range(depth)))
        self.head = nn.Linear(dim, 100)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def main() -> None:
    given = options(steps=8)
    big = given.device == "cuda"
    model = Net(96, 6) if big else Net(64, 3)
    model = model.eval().to(given.device, memory_format=torch.channels_last)
    optimized(model, given)
    size = (32, 3, 224, 224) if big else (2, 3, 128, 128)
    images = torch.randn(size, device=given.device).to(memory_format=torch.channels_last)
    images = exact(images, given)

    @torch.inference_mode()
    def step(number: int) -> Tensor:
        return model(images * (1 + number / 10))

    finished(step, given)


if __name__ == "__main__":
    main()
