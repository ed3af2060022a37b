"""Readings of the harness from /proc."""

import os
import subprocess
import sys

from cmqd_bench.machine.processes import (
    CLOCK_TICKS,
    cpu_seconds,
    family,
    machine_busy_seconds,
    parse_busy_ticks,
    parse_rss_kib,
    parse_stat,
    read_stat,
    rss_kib,
)

STAT = (
    "4242 (cm qd) (x)) S 17 4242 4242 0 -1 4194560 100 200 0 0 31 11 7 3 20 0 2 0 12345 1000000 2000"
    " 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0"
)


def test_a_command_with_blanks_and_parentheses_does_not_shift_the_fields():
    stat = parse_stat(STAT)

    assert (stat.pid, stat.parent, stat.state) == (4242, 17, "S")


def test_cpu_is_user_and_system_time_and_that_of_reaped_children_apart():
    stat = parse_stat(STAT)

    assert (stat.cpu_ticks, stat.reaped_ticks) == (31 + 11, 7 + 3)


def test_a_zombie_does_not_run():
    assert parse_stat(STAT).running
    assert not parse_stat(STAT.replace(" S ", " Z ")).running


def test_a_process_that_is_gone_has_no_stat_and_costs_nothing():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    assert read_stat(gone.pid) is None
    assert cpu_seconds([gone.pid]) == 0
    assert rss_kib([gone.pid]) == 0


def test_this_process_is_as_the_kernel_says():
    stat = read_stat(os.getpid())

    assert stat is not None
    assert stat.parent == os.getppid()
    assert abs(cpu_seconds([os.getpid()]) - sum(os.times()[:4])) < 5 / CLOCK_TICKS + 1
    assert rss_kib([os.getpid()]) > 1024


def test_the_resident_size_is_read_from_its_line():
    assert parse_rss_kib("VmPeak:\t 900 kB\nVmRSS:\t   512 kB\nRssAnon:\t 100 kB\n") == 512
    assert parse_rss_kib("Name:\tzombie\nState:\tZ (zombie)\n") == 0


def test_a_family_holds_children_of_children():
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())

    members = [member.pid for member in family(parent.pid)]
    own = [member.pid for member in family(os.getpid())]

    parent.communicate("\n")
    assert members == [parent.pid, grandchild]
    assert {parent.pid, grandchild} < set(own)


def test_the_machine_is_busy_with_all_but_idling_and_waiting():
    text = "cpu  100 20 3 90000 70000 4 5 6 700 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"

    assert parse_busy_ticks(text) == 100 + 20 + 3 + 4 + 5 + 6
    assert machine_busy_seconds() > 0
