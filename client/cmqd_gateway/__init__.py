"""The gateway: an HTTP server that is a client of the broker. CMQ's APIs, a JSON API, the console and metrics.

    server ─────────── the application, its listeners and its end
      ├── tls_port           sockets of HTTPS up to the end of the TLS handshake; the certificate in use
      ├── connection_guard   limits of an HTTP connection: slow heads, slow readers, the number of connections
      ├── cmq/               API 2.0: signature, parameters, actions, errors
      ├── rest/              the JSON API
      ├── console/           pages for people, over the JSON API
      ├── key_secrets        secrets of keys, for a second at most
      ├── broker_connections clients of the native protocol per key, and clients of their own for long polls
      └── hand_over          the messages of an answer that is not written go back to their queue

The gateway connects to the broker with the key of each caller, so the broker itself enforces account, role, name
patterns and limits. Decision 0150 has the reasons.

Glossary:

- action: a request of CMQ's API 2.0, by the name in its parameter ``Action``.
- caller: the key that authenticated a request.
- direct request: a frequent request of the JSON API that is answered without aiohttp.
- door: the code that takes the requests of a protocol or of an API.
- face: a protocol in front of the broker's operations: native, API 2.0, JSON or console.
- guard: the limits of an HTTP connection before aiohttp reads a request.
- hand-over: the write of received messages to an HTTP client, or their return to the queue.
- identity: the digest of a signed request, by which a repeat is known.
- key: a secret id with its secret, an account, roles and name patterns.
- poll: a receive that waits; polls have connections of their own to the broker.
- problem: an error of the JSON API, in the form of RFC 9457.
- role: the operations that a key may call; a name pattern limits the role to queues and topics.
"""
