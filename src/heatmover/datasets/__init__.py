"""Data with known truth."""
