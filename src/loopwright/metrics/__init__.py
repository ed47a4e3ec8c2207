"""What is known of metrics by their names; nothing here imports torch."""
