"""Hours of life in minutes: a real daemon, real processes and signals, random traffic and faults."""
