"""The log of cmqd as Arrow: plans of a read, and batches of messages. Needs neither Spark nor Java, nor a broker."""
