"""Fuzzing: random changes to pictures, checkpoints and JSON values, and measurements of their cost.

``python -m tests.fuzz TARGET --seconds 600 --seed 7`` looks for inputs that take more time or memory than their size
allows, for costs that grow faster than the size, and for errors that are no :class:`vitviz.VitvizError`. Seed and
number determine every case; a finding is printed with the command that repeats it. :mod:`tests.fuzz.corpus` has all
inputs that once caused harm.
"""
