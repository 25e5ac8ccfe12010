"""DDP25x: gradients that are not what they should be: poisoned, clipped, scaled, not scaled or cut off."""
