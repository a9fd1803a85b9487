"""The door: one module a command; a room is imported only when its command runs."""
