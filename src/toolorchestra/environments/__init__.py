"""Worlds of one rollout: what is asked, with which tools, and whether it was solved."""
