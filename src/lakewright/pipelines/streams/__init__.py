"""Streaming datasets: what a micro-batch does, and the queries, workers and rewinds around it."""
