"""Studies: what a user asks for, put together from text, model and training."""
