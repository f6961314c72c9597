"""The bottom: values and protocols that everything else is written in."""
