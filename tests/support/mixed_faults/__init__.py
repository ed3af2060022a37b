"""Mixed faults: two real brokers over three real PostgreSQL servers, a load, and faults of brokers, servers and links.

brokers   the two brokers, their supervisors, and the load on the broker that leads
roles     the manager of the servers: primary, named standby, spare
faults    the faults, a function each, which ends with servers and links whole
stored    checks of the rows that the servers have
"""
