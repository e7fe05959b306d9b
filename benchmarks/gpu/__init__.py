"""What a graphics card is asked: whether vitviz is right there, where it waits, how near the forward pass it stays.

``benchmarks/gpu.sh`` starts it. Each part runs in a process of its own, adds its rows to one file of JSON lines, and
costs the others nothing if it fails or runs out of time.
"""
