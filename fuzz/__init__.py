"""Long runs of what the tests run in short."""
