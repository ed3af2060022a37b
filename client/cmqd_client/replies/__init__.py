"""Results of calls made from replies: fields by their names on the wire, times, ids and durations."""
