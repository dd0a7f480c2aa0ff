"""Who hooks which class of mlx-lm, and hooks that cannot leak."""
