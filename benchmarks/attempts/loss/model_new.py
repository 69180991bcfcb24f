import torch
from torch import nn

from cuagent.kernels import load

kernels = load("kernels/loss.cu")


class ModelNew(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows, classes = logits.shape
        losses = torch.empty(rows, device=logits.device)
        out = torch.empty((), device=logits.device)
        kernels.loss(out, losses, logits, labels, self.weight, rows, classes)
        return out
