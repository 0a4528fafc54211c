"""Embedded data whose truth is known."""
