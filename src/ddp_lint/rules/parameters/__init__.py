"""DDP2xx: parameters and what autograd keeps: in-place writes, shared storage, ties."""
