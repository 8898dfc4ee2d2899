"""Clusters that are reached over SSH: connection, code and client that go there, words that run there."""
