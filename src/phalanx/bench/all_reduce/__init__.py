"""All-reduces in several systems, taking turns in one run."""
