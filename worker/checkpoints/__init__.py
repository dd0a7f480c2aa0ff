"""Models' files: where they are, what they say, whether they are what they were."""
