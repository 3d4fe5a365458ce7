"""The command line, `python -m tedsl`: one file per command, `main` puts them together."""
