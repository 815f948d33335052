"""Kinds of task, one a file: what a specification may ask for, the pure function that computes it, its result."""
