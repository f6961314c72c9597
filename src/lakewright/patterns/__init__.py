"""One module per pattern, in a folder per chapter: a verb on frames and, where pipelines use it, a noun."""
