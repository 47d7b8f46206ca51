"""Numbers to SVG, PNG and PDF."""
