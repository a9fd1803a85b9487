"""How Hypothesis runs: the same examples every time, or, under `make fuzz`, many random ones."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=2_000)
settings.load_profile("steady")
