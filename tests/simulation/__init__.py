"""The pure core in a simulated world: seeded clients, processes, faults and time.

A run is a script of steps. Each step names an action and carries the seed of all its choices, so
that any part of a script is a script again: what fails is shrunk by leaving steps out.
"""
