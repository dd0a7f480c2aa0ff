"""DFlash itself: draft a block, verify it, keep what the target accepts."""
