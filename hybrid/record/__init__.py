"""What happened while an answer was written: the events, and the answer, the bill and the trace made of them."""
