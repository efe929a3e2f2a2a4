"""Evaluations for people: tables for a terminal, and pages that need nothing but a browser."""
