"""Command line: one file per command. Arguments are parsed with argparse."""
