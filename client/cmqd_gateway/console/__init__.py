"""The console: pages for people, served at ``/console`` and made of the JSON API.

    routes ─────────── the shell for every page path, static files, the session
      ├── files          the files of ``static/``: content types, gzip, versions, Content-Security-Policy
      └── session_routes sign in, the session, sign out
            └── sessions      a signed cookie in place of the key
                  └── signed_texts  tokens of sessions and of sign-in links
    events ─────────── the event stream of a page, and the last hours of its account

A page uses the JSON API and the events of the console, and no other way to the broker.
"""
