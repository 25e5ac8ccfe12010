"""DDP6xx: wrapping with DDP and FSDP, and what defeats the wrapper."""
