"""DDP5xx: failures that exit as success."""
