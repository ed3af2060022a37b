"""Reads with Spark, batch and stream: plans on the driver, Arrow batches on the executors."""
