"""Which sense moves to which word, as pure functions of statistics, and the moves themselves. No fairseq."""
