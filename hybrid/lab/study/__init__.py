"""A study: what is run is data (a design), and what is found is a report of sections."""
