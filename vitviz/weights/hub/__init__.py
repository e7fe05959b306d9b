"""Checkpoints of the Hugging Face hub: their names, what is in the cache, and downloads."""
