"""Modules: ``nn.Module``s over :mod:`kerbs_fairseq.functional`, with parameters and buffers. No fairseq."""
