"""From paths to findings: focus, one walk, a pool, a cache."""
