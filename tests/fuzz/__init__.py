"""Hostile input by chance: pictures, checkpoints and values of JSON are changed and what they cost is measured.

``python -m tests.fuzz TARGET --seconds 600 --seed 7`` looks for what takes more time or memory than its size warrants,
for what grows faster than its size does, and for errors that are no :class:`vitviz.VitvizError`. Every case is drawn by
its seed and its number alone; a finding is printed with the command that makes it again. What ever hurt is in
:mod:`tests.fuzz.corpus`.
"""
