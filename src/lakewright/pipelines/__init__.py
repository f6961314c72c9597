"""The declarative layer: declare datasets, check the graph, decide what to make, make it, repair it."""
