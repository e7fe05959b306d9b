"""vitviz side by side with timm, transformers, vit-pytorch and vit-explain: ``python -m benchmarks`` measures all."""
