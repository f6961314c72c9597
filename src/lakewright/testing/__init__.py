"""For users' tests and our own: a pytest plug-in with a session, a temporary lake, and a way to run a pipeline."""
