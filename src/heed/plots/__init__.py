"""Figures: arrays to SVG, PNG and PDF, without torch."""
