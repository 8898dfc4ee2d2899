"""Clusters that are reached over SSH: the connection, the copied files, and the remote commands."""
