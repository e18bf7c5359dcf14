"""The feedback server: it serves a model, asks questions, learns from answers and can roll back."""
