"""Writes with Spark: the rows of a DataFrame become messages of a broker."""
