"""What runs leave behind: checkpoints, logs, outputs, processes."""
