"""A file of questions, answered line by line: its lines, its output, and several at once. It knows no argv."""
