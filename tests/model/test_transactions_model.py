"""Half messages and dedup ids, among all other events of a queue; see :mod:`model.transactions`."""

from model.judge import profile
from model.transactions import TransactionsMachine

TestTransactions = TransactionsMachine.TestCase
TestTransactions.settings = profile(400)
