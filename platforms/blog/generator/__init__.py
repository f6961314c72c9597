"""The parts of the blog's data generator; ``platforms.blog.generate`` is the way in."""
