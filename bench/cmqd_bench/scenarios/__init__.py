"""The scenarios: modules with ``async def run(options, broker) -> Round`` over a broker not yet started."""
