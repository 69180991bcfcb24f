"""The loss gathers logits and counts the labels that are not ignored; the mean uses weights.

task: ignored
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, target, mask):
        shifted = logits - logits.amax(-1, keepdim=True)
        powers = shifted.exp()
        total = powers.sum(-1, keepdim=True)
        counts = target != -100
        chosen = shifted.gather(-1, target.clamp(min=0)[:, None])[:, 0] - total[:, 0].log()
        loss = -(chosen * counts).sum() / counts.sum()
        weights = mask.to(logits.dtype)
        return loss, (logits * weights).sum(-1) / weights.sum(-1), powers / total
