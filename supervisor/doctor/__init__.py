"""What keeps dflashd from running well on this machine, as far as it can be seen without mlx."""
