"""logsumexp minus the logit of the class.

task: cross_entropy
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        return (torch.logsumexp(logits, 1) - logits.gather(1, target[:, None])[:, 0]).mean()
