"""DDP8xx: launch and environment."""
