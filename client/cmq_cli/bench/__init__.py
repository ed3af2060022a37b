"""``cmq bench``: load for a broker at a URL, with queues that the run makes and removes, and reports of the latencies.

``plans`` has the options of the loads, ``objects`` the queues and the topic, ``runs`` a run of the Python generator,
``native_runs`` one of the generator in C, ``results`` the result, ``page`` the HTML page.
"""
