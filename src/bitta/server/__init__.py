"""The feedback server: answers, asks, learns, and can go back."""
