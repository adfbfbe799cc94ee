"""Server families: pure functions from a question to a body and from a body to an answer."""
