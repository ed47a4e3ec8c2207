"""The skeleton of a project for the lifecycle door; this file stays here."""
