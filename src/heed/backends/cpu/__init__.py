"""C for this processor, compiled when it is first needed."""
