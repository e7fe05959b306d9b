"""Which architectures of other packages vitviz opens as modules in memory, and how close its numbers are.

``python -m tests.parity.coverage RESULTS.jsonl --package timm`` (or ``transformers``, ``open_clip``) builds every
architecture with attention between patches with random weights, at reduced depth, width and image size where it takes
them, and looks at it as a user would. Architectures that stand in the file are not built again; ``--only`` takes a
pattern of names, which are then built again. ``--table`` prints the tables of ``docs/checked.md`` from it.
"""
