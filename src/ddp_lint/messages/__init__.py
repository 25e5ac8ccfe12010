"""Sends and receives: what each rank of a small job exchanges with the others, and which of them wait for ever."""
