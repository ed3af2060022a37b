"""Schedules, among all other events of queues; see :mod:`model.schedules`."""

from model.judge import profile
from model.schedules import ScheduleMachine

TestSchedules = ScheduleMachine.TestCase
TestSchedules.settings = profile(300)
