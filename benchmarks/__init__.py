"""Benchmarks: `python -m benchmarks [NAME ...] [--quick] [--out DIR]` prints a table and writes the figures as JSON.

To add one, add a file to this folder: its name is the benchmark's name (a leading underscore hides helpers). It
opens with a line that says what is measured and has `run(quick: bool) -> dict`, which returns {"figures": [...]},
each made by `_figures.figure`, with a target or without. Compare times by `_timing.compare` (ratios of interleaved
calls, never seconds), memory by `_memory.peak_growth`, and check in the run that both sides agree in their numbers.
"""
