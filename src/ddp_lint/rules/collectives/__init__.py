"""DDP1xx: collectives, and the ranks that never reach them."""
