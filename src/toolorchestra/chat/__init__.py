"""Models that answer a conversation, and the forms in which conversations are written."""
