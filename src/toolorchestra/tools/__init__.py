"""What a policy can call: an interpreter, local search, experts, and the final answer."""
