"""``python -m cmqd_client.synchronous.generator`` writes ``cmqd_client/sync.py``."""

from cmqd_client.synchronous.generator.module import FACADE, facade

if __name__ == "__main__":
    FACADE.write_text(facade())
