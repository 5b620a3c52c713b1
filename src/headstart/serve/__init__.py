"""Models over HTTP: an API that answers in batches, and a page to try it on."""
