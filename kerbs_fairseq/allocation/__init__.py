"""Policy: which sense moves to which word, as pure functions from statistics to moves. No fairseq."""
