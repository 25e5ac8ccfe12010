"""DDP9xx: streams, asynchronous work and CUDA graphs."""
