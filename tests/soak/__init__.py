"""Hours of life in minutes: a real daemon and real processes, random traffic and faults."""
