"""Clips, read frame by frame, and videos of their maps on one scale. Needs the extra ``video``."""
