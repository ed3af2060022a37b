"""``cmqd restore``: a data folder as of a row of a backup. The folder that is filled is held as that of a clone."""
