"""Untrusted code, isolated."""
