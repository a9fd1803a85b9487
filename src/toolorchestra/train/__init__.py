"""The training job: warm-up, GRPO, checkpoints."""
