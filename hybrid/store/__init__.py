"""Files of one's own: whole lines, JSON by name, folders, and what file systems do differently."""
