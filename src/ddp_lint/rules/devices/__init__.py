"""DDP4xx: devices, checkpoints, worker processes and shared memory."""
