"""Recovery: checkpoints (written and read back), and the replay of the records after a checkpoint."""
