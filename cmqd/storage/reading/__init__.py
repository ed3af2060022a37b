"""Pages of messages: from positions of a queue to rows of segments and their bodies."""
