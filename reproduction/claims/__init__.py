"""The claims of the paper, each with a check against our results."""
