"""A self-signed certificate for 127.0.0.1 with its key, and certificates that a test makes.

The key is public: no program may trust the certificate.
"""
