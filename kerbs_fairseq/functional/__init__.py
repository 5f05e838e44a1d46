"""Mathematics: pure functions of tensors. No state, no options object, no fairseq."""
