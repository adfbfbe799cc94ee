"""Settings: every one declared once, where they come from, and the names and addresses that they hold."""
