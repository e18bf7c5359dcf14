"""Run experiments described in TOML, run sweeps of them, measure speed, and train source models."""
