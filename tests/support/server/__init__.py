"""The whole server in memory, without sockets, disk and clock: rig, clock, pusher, and a receiver of pushes."""
