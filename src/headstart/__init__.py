"""headstart pretrains a transformer on your text, swaps its head, fine-tunes it, and tells you what that bought you."""

__version__ = "0.1.0"
