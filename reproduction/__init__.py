"""Reproduction of the paper: its numbers, its claims, and the pages that compare them with ours."""
