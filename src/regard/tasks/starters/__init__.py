"""Starter recipes for a user's own data."""
