"""What is known of a pair of models: its profile, what was learned of it, its speeds, and what it lets expect."""
