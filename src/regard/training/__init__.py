"""The training loop and its parts: losses, optimizers, schedules, checkpoints, CUDA graphs, the log."""
