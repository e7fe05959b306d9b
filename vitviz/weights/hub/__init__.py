"""Checkpoints of the Hugging Face hub: their names, the cache, and downloads."""
