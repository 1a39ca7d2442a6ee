"""Training steps in several systems, taking turns in one run."""
