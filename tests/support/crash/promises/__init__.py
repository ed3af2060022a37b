"""A recorded history of a killed broker, and a checker of all promises in it, a rule per module."""
