"""Train a policy from run logs: sampling, rejection fine-tuning, value pretraining, PPO.

    data/        tasks.py: loading and the held-out split; segments.py: the record of an episode;
                 windows.py, runs.py, sources.py: run logs to episodes; filters.py: what RFT
                 imitates; batch.py, packing.py: tensors; export.py: formats of other trainers
    policy/      chat.py, tool_calls.py: messages to token ids and back; model.py: actor and critic;
                 head.py: logits, log-probabilities and values in fp32;
                 packed_attention.py, cached_attention.py: attention within packed rows, and to
                 earlier turns; lora.py: adapters;
                 placement.py: replicas or shards; optimize.py: the shared update;
                 checkpoint.py: resuming; best.py: the best weights on held-out tasks;
                 folder.py: a policy's folder, from loading to saving
    engines/     token ids to sampled ids: engine.py in batches, cached.py with conversations in
                 memory, continuous.py by transformers, server.py by a server; verl_*.py: export
                 to verl, its agent loop and its GAE
    rollout/     episode.py: episodes through the agent's loop and tools; collect.py: many of them;
                 store.py: their files; setup.py: the engine and the judges for the settings
    judging/     pool.py, judge_process.py: verdicts for many episodes; pool_server.py, ray_pool.py:
                 for other processes and machines
    algorithms/  rft.py, value.py, ppo.py, ppo_update.py: the loops; losses.py, advantage.py,
                 reward.py: their objectives; curriculum.py: the choice of tasks; metrics.py,
                 monitor.py: alarms
    demo/        the demonstration: a small policy that chooses among its teacher's kernels

    settings.py, config.py                      settings, and how they are read
    stages.py, pipeline.py, cli.py, session.py  commands; manifest.py: a folder's own settings
    report.py, tensorboard.py, throttle.py      curves, metrics and progress
    parallel.py, files.py, doctor.py            processes, atomic files, check of the installation

Modules that compute import torch at their top; `cli.py` imports them only when a command runs.
Everything that uses a transformers model needs the extra `cuagent[train]`.
"""
