"""Prefix caching of the PyTorch engine that tells images apart: see docs/prefix_cache.md."""
