"""Pages that need nothing but a browser: HTML and SVG as pure functions of what they show. Standard library only."""
