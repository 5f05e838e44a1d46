"""Benchmarks. Results are ratios within one run: absolute times and sizes depend on the machine."""
