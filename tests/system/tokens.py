"""The tokens of the services that the tests run: made up, and to be found in no log."""

TOKEN = "canary-5d0e8c1f-token"
REFUSED_TOKEN = "canary-91b7aa42-token"
WATCHED_TOKEN = "canary-3c55e0d9-token"
