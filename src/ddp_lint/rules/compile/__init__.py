"""DDP3xx: torch.compile and the host: graph breaks, recompilations, synchronisations."""
