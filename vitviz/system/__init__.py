"""The operating system: memory of this process and machine, threads for NumPy, and files written whole or not at all.

Nothing here knows images, networks or files of weights.
"""
