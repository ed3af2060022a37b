"""The same work against cmqd and its peers, in turns on one machine; see bench/README.md, section "Peers"."""
