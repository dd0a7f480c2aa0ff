"""The prefix cache: what a model computed for one prompt, kept for the next that begins alike.

``identity`` names a model and what makes its snapshots valid; ``registry`` holds one ``manager``
for each identity; a manager keeps ``snapshot`` values in RAM (``ram``) and on disk (``disk``).
Decisions are pure (``boundaries``, ``prefixes``, ``eviction``); mlx is met in ``layers`` only.
"""
