"""The policy (actor) and the critic: chat templates, models, adapters, placement, optimizer,
checkpoints."""
