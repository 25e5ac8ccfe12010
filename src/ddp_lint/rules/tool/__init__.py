"""Findings about the run itself rather than about distributed code."""
