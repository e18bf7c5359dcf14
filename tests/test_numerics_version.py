"""NUMERICS_VERSION is raised when the numbers of a run change."""
