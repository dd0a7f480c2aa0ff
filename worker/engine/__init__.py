"""Models and generations on mlx, behind one border."""
