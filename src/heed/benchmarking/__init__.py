"""What a machine can do, and how much of it heed does: settings or a model to speeds, memory and shares of a limit."""
