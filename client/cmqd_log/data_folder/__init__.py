"""The data folder as readers find it: its files, views at a row of the log, names, and pieces of work."""
