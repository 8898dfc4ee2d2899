"""Clusters that are reached over SSH: the connection, what is copied there, the commands that run there."""
