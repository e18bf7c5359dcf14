"""Experiments: described in TOML, run to a result, resumable; and the training of source models."""
