"""A run folder opened, and everything one can do with it.

The only part of the package that the command line and the server call.
"""
