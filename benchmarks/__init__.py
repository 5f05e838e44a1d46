"""Measurements, as ratios in one run: absolute times and sizes depend on the machine."""
