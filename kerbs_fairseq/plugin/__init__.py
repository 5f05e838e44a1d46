"""Glue: the fairseq side, thin. What is registered with fairseq, and the fixes that fairseq itself needs."""
