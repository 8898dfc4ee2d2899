"""Values that the client and the nodes share; pure."""
