"""The vision encoder: tiles of all requests in shared batches; see docs/vision.md."""
