"""Scaling studies: one script at several world sizes and strategies, measured, tabled and predicted."""
