"""Values that the client and the nodes share. No module has side effects."""
