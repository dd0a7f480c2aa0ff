"""Messages, codec, errors and the client library of dflashd."""
