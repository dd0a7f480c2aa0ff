"""Prompts into tokens, tokens into text, and what an answer is made of."""
