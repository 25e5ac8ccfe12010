"""DDP7xx: which rank reads which samples."""
