"""Training and evaluation of a Vision Transformer on a labelled image folder. Needs the extra ``train``."""
