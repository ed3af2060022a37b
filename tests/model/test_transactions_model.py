"""Half messages and dedup ids, among everything that happens to a queue; see :mod:`model.transactions`."""

from model.judge import profile
from model.transactions import TransactionsMachine

TestTransactions = TransactionsMachine.TestCase
TestTransactions.settings = profile(400)
