"""Evaluation: scores of the outputs of fairseq's commands, significance tests, and the paper's tables."""
