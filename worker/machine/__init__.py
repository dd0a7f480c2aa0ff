"""What this computer computes with."""
