"""A file a paper: its judge, the law that the judge keeps, the source, and the presets. See README.md."""
