"""The reference models measured: right answers, agreement, and what entropy knows; and the card that says it."""
