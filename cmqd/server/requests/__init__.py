"""Requests on their way into the core: dispatch, groups of alike requests, and refusals as error replies."""
