"""The live page of a run: what it shows, how it follows the files of the run, and the server behind it."""
