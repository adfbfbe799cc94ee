"""One file for each decoding rule: its judge or gate, the law it keeps, its source, and its preset. See README.md."""
