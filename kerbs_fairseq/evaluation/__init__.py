"""What models are judged by: scores from the outputs of fairseq's commands, significance, and the paper's tables."""
