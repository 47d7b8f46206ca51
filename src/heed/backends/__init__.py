"""The same arithmetic, faster: one protocol, one chooser, and a folder per backend."""
