"""Files of weights as tensors and settings: safetensors, zip archives, pickles that are read and never run, npz.

Nothing here knows a family.
"""
