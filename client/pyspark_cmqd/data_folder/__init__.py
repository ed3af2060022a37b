"""The data folder as Spark finds it: its files, views at a row of the log, names, and pieces of work."""
