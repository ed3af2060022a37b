"""Rewinding, among all other events of a queue; see :mod:`model.rewinding`."""

from model.judge import profile
from model.rewinding import RewindMachine

TestRewind = RewindMachine.TestCase
TestRewind.settings = profile(400)
