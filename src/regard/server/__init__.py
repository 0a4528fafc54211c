"""The HTTP API and the page: what runs can do, over a connection that nobody needs to trust."""
