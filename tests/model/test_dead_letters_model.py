"""Dead letters and redrives, among all other events of queues; see :mod:`model.moves`."""

from model.judge import profile
from model.moves import MovesMachine

TestDeadLetters = MovesMachine.TestCase
TestDeadLetters.settings = profile(400)
