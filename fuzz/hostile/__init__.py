"""Coverage-guided fuzzing of what the kernel reads from disk."""
