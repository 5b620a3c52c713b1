"""Training: one loop for pretraining and fine-tuning, and what it is made of."""
