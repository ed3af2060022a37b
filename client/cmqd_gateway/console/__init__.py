"""The console: pages for people, served at ``/console`` and made of the JSON API.

    routes ─────────── the shell for every page path, static files, the session
      ├── files          the files of ``static/``: content types, gzip, versions, Content-Security-Policy
      └── session_routes sign in, the session, sign out
            └── sessions      a signed cookie in place of the key
                  └── signed_texts  tokens of sessions and of sign-in links
    events ─────────── the event stream of a page, and the last hours of its account

A page uses the JSON API and the events of the console, and no other way to the broker.

Glossary:

- finding: a state of the broker that an operator should know of, with names and figures.
- forecast: the time until the disk is full, by the trend of the last readings.
- reading: the broker's figures at a moment, for all open pages of an account.
- session: a sign-in of a browser, held in a signed cookie in place of the key.
- sign-in link: a link of ``cmq console`` that signs a browser in once, within a minute.
- token: the value that a page sends with a change, against forged requests of other sites.
"""
