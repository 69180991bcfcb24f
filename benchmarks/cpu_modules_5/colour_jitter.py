"""Change of saturation, hue and brightness of images through HSV."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def forward(self, rgb: Tensor, hue: Tensor, saturation: Tensor, brightness: Tensor) -> Tensor:
        r, g, b = rgb.unbind(1)
        value, low = rgb.amax(1), rgb.amin(1)
        chroma = value - low
        safe = torch.where(chroma == 0, torch.ones_like(chroma), chroma)
        on_red = ((g - b) / safe) % 6
        on_green = (b - r) / safe + 2
        on_blue = (r - g) / safe + 4
        h = torch.where(value == r, on_red, torch.where(value == g, on_green, on_blue)) / 6
        h = (h + hue[:, None, None]) % 1.0
        s = chroma / value.clamp(min=1e-8)
        s = (s * saturation[:, None, None]).clamp(0, 1)
        v = (value * brightness[:, None, None]).clamp(0, 1)
        out = []
        for n in (5, 3, 1):
            k = (n + h * 6) % 6
            out.append(v - v * s * torch.minimum(k, 4 - k).clamp(0, 1))
        return torch.stack(out, dim=1)


def get_inputs() -> list[Tensor]:
    hue = torch.rand(4) * 0.2 - 0.1
    return [torch.rand(4, 3, 128, 128), hue, torch.rand(4) + 0.5, torch.rand(4) + 0.5]


def get_init_inputs() -> list[object]:
    return []
