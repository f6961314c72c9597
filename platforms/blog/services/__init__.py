"""The blog's outside world: a producer that sends visits to Kafka, and the tables of PostgreSQL that others change."""
