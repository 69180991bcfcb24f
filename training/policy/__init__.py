"""Actor and critic: chat templates, models, adapters, placement, optimizer, checkpoints."""
