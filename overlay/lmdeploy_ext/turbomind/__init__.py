"""Image features in GPU memory that token ids name: "virtual tokens" for TurboMind."""
