"""Replace verl's advantage function by cuagent's GAE; the exported plug-in installs it.

verl (0.9) skips observations correctly. But it puts the terminal reward on the last token even if
that token is masked, and it has one lambda for actor and critic. Its registry of estimators does
not pass the values, so the function itself must be replaced.
Not covered: rewards within an episode (a KL penalty in the reward), discounting.
Invariant: `gae` has the same parameters and results as verl's function; `install` raises an error
if verl's function has other parameters.
"""

from __future__ import annotations

import inspect
import os

import torch
from torch import Tensor

from cuagent.training.algorithms.advantage import advantages_and_returns, whiten

ARGUMENTS = ["token_level_rewards", "values", "response_mask", "gamma", "lam"]
LAM_ACTOR = "CUAGENT_LAM_ACTOR"
"""Name of the environment variable with the actor's lambda, or `adaptive`. If unset, the actor uses
the critic's lambda (`algorithm.lam`)."""


def gae(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return (whitened advantages, returns), both [B, L]; zero where no token was sampled.

    All tensors are [B, L]; `response_mask` is 1 on sampled tokens. Rows without sampled tokens
    (padding) stay zero. Raises ValueError if `gamma` is not 1 or a row has several rewards.
    """
    if float(gamma) != 1.0 or bool((token_level_rewards != 0).sum(1).gt(1).any()):
        raise ValueError("cuagent's GAE needs algorithm.gamma=1 and use_kl_in_reward=False")
    mask = response_mask.bool()
    rows = mask.any(1)
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    with torch.no_grad():
        advantages[rows], returns[rows] = advantages_and_returns(
            values[rows],
            mask[rows],
            torch.arange(int(rows.sum()), device=values.device),
            token_level_rewards[rows].sum(1),
            lam_actor(float(lam)),
            float(lam),
        )
        return whiten(advantages, mask), returns


def lam_actor(lam: float) -> float | None:
    """Return the lambda of the actor's GAE; None: length-adaptive. `lam`: the critic's lambda, used
    if `CUAGENT_LAM_ACTOR` is unset."""
    setting = os.environ.get(LAM_ACTOR, "")
    return None if setting == "adaptive" else float(setting or lam)


def install() -> None:
    """Replace verl's advantage function by `gae`. Raises RuntimeError if verl's function has other
    parameters."""
    from verl.trainer.ppo import core_algos

    parameters = list(inspect.signature(core_algos.compute_gae_advantage_return).parameters)
    if parameters != ARGUMENTS:
        raise RuntimeError(
            f"this verl's compute_gae_advantage_return takes {', '.join(parameters)}; cuagent "
            f"supports {', '.join(ARGUMENTS)} (verl 0.9)"
        )
    core_algos.compute_gae_advantage_return = gae
