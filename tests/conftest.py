"""What holds for all property tests: the same examples each time, and no deadline, whatever else the machine does."""

from hypothesis import settings

settings.register_profile("sarpstore", deadline=None, derandomize=True, database=None)
settings.load_profile("sarpstore")
