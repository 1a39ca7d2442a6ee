"""The transformer trainer."""
