"""Sessions and drivers of Spark, and data folders that Spark reads."""
