"""The HTTP gateway: OpenAI's and Anthropic's dialects in front of the daemon's own protocol."""
