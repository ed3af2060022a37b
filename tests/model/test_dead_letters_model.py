"""Dead letters and redrives, among everything that happens to queues; see :mod:`model.moves`."""

from model.judge import profile
from model.moves import MovesMachine

TestDeadLetters = MovesMachine.TestCase
TestDeadLetters.settings = profile(400)
