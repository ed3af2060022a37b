"""The disk format of cmqd: records, rows, segments and checkpoints, shared by the server and by readers of its log."""
