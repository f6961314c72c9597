"""Fixtures come from the package's own pytest plug-in (``lakewright.testing.plugin``)."""
