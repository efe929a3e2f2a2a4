"""``mens-sup doctor``: what is missing on this machine, and how to get it."""

from supervisor.doctor.check import Check, Verdict, render
from supervisor.doctor.examine import examine

__all__ = ["Check", "Verdict", "examine", "render"]
