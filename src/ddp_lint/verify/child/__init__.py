"""What runs in the ranks. Only modules below this package import torch."""
