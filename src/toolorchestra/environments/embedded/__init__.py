"""The embedded world: tasks with exact answers, a corpus, and simulated experts, all offline and from a seed."""
