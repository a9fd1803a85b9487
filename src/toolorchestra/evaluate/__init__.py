"""Judging policies: the same tasks, tools, prices and limits for all of them, then tables, intervals and plots."""
