"""Train a policy from run logs: samples, rejection fine-tuning, value pretraining, PPO.

    data/        tasks.py: loading and the held-out split; segments.py: the record of an episode;
                 windows.py, runs.py: run logs to episodes; filters.py: what RFT imitates;
                 batch.py: padded tensors; export.py: formats of other trainers
    policy/      chat.py, tool_calls.py: messages to token ids and back; model.py: actor and critic;
                 lora.py: adapters; placement.py: replicas or shards; optimize.py: the shared
                 update; checkpoint.py: resuming; best.py: the best weights on held-out tasks
    engines/     token ids to sampled ids: engine.py in this process, continuous.py from pages,
                 server.py by a server; verl_*.py: export to verl, its agent loop and its GAE
    rollout/     episode.py: episodes through the agent's loop and tools; collect.py: many of them
    judging/     pool.py, judge_process.py: verdicts for many episodes; pool_server.py, ray_pool.py:
                 for other processes and machines
    algorithms/  rft.py, value.py, ppo.py: the loops; losses.py, advantage.py, reward.py: their
                 objectives; curriculum.py: the choice of tasks; metrics.py, monitor.py: alarms
    demo/        the demonstration: a small policy that chooses among its teacher's kernels

    stages.py, pipeline.py, config.py, cli.py   commands and settings; manifest.py: a folder's own
    report.py, tensorboard.py, throttle.py      curves, metrics and progress
    parallel.py, files.py, doctor.py            processes, atomic files, check of the installation

Modules that compute import torch at their top; `cli.py` imports them only when a command runs.
Everything that uses a transformers model needs the extra `cuagent[train]`.
"""
