"""What the policy is shown of what happened: turns to messages, in one of two shapes."""
