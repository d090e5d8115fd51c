"""Measurements with their baselines, each in one run: `python -m benchmarks [names]`."""
