"""Which expressions of a function are tensors, where they come from, what autograd keeps of them, who compiles it."""
