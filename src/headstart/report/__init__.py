"""One page from the records of runs: figures, tables, and the words that go with them."""
