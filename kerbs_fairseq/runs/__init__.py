"""Files and processes of runs: checkpoints, logs, outputs, console commands, and errors of users."""
