"""From run logs to a better policy: samples, rejection fine-tuning, value pretraining, PPO.

    segments.py   what was sampled: append-only token segments, episodes, their JSONL
    chat.py       messages to token ids and back, by the target's chat template
    windows.py    what a run log says was said; data.py: run logs to episodes, the held-out split
    filters.py    which episodes are imitated; export.py: formats of others
    batch.py      episodes to padded tensors
    advantage.py  GAE over action tokens
    losses.py     the objectives; metrics.py, report.py: their statistics and curves
    monitor.py    is the run collapsing? trust.py: how far an iteration may go
    model.py      actor and critic; lora.py: adapters; placement.py: replicas or shards
    optimize.py   the shared update; parallel.py: over processes; checkpoint.py: to resume
    reward.py     what an episode is worth to the learner; board.py: metrics for TensorBoard
    rft.py, value.py, ppo.py   the three stages, each one loop that reads top to bottom
    engine.py     ids to sampled ids; rollout.py: episodes through the agent's own loop and tools
    pool.py       verdicts for many episodes; ray_pool.py: on many machines
    collect.py    a policy plays tasks; curriculum.py: which; pace.py: how far it is
    verl_*.py     the export to verl, its loop and its GAE; doctor.py: what is here
    stages.py, config.py, cli.py   what a person touches; begun.py: who may go on with a folder
    gym.py, teacher.py, presets.py, demo.py   a small policy learns from nothing
    trial.py      over several seeds; lend.py: one pool for all; paired.py: their differences
    audit.py      the last kernels once more; ablation.py: one thing left out

Modules that compute import torch at their top; `cli.py` imports them only when a command runs.
Needs the extra `cuagent[train]` for everything that touches a transformers model.
"""
