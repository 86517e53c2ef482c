"""What a user reads: tables, JSON and plots."""
