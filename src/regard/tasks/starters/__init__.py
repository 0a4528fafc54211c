"""Starter recipes for a user's own data, with settings that suit its size (`regard new`). Each task names its own."""
