"""The report of a suite's results: `content` says what, `html` and `markdown` write it down. Nothing imports torch."""
