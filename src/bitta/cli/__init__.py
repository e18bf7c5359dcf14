"""The command line: one file per command, standard library only."""
