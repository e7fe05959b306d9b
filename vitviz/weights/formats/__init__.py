"""Read the tensors and settings in files of weights: safetensors, torch.save, npz. Pickles are read, never run.

Nothing here depends on a family.
"""
