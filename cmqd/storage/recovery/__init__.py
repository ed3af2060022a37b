"""The start of a log: the folder is inspected and repaired, and its content streamed to the loop process."""
