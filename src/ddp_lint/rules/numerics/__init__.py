"""DDP25x: values that are lost on one rank and poison the gradients of all."""
