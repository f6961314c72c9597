"""The blog's outside world: a producer that sends visits to Kafka, and the users table of PostgreSQL."""
