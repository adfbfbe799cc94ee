"""OpenAI's wire for any client on this machine, and a page that shows the hybrid at work."""
